"""kernelsearch
format = 1
operator = "spmv_csr"
doc = "equal numbers of rows over the threads"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["reassoc", "contract"]
[tunables]
ROWS_PER_TASK = [1024, 64, 256, 4096]
[[launch]]
kernel = "spmv_csr"
args = ["y", "row_ptr", "col_idx", "values", "x"]
"""

import numpy as np
from numba import prange


def sparse_dot(values, col_idx, x, first, last):
    # Unsigned positions need no test for Python's negative indices.
    total = ELEM(0)
    for p in range(np.uint64(first), np.uint64(last)):
        total += values[p] * x[np.uint32(col_idx[p])]
    return total


def spmv_csr(y, row_ptr, col_idx, values, x):
    rows = y.shape[0]
    tasks = (rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    for task in prange(tasks):
        for i in range(task * ROWS_PER_TASK, min(rows, (task + 1) * ROWS_PER_TASK)):
            y[i] = sparse_dot(values, col_idx, x, row_ptr[i], row_ptr[i + 1])
