"""kernelsearch
format = 1
operator = "spmv_csr"
doc = "one thread, four sums a row: no fork for small matrices"
dtypes = ["float32", "float64"]
[numba]
fastmath = ["contract"]
[[launch]]
kernel = "spmv_csr"
args = ["y", "row_ptr", "col_idx", "values", "x"]
"""

import numpy as np


def sparse_dot(values, col_idx, x, first, last):
    # Unsigned positions need no test for Python's negative indices; four sums hide latency.
    begin = np.uint64(first)
    end = np.uint64(last)
    whole = begin + (end - begin) // np.uint64(4) * np.uint64(4)
    s0 = ELEM(0)
    s1 = ELEM(0)
    s2 = ELEM(0)
    s3 = ELEM(0)
    p = begin
    while p < whole:
        s0 += values[p] * x[np.uint32(col_idx[p])]
        s1 += values[p + np.uint64(1)] * x[np.uint32(col_idx[p + np.uint64(1)])]
        s2 += values[p + np.uint64(2)] * x[np.uint32(col_idx[p + np.uint64(2)])]
        s3 += values[p + np.uint64(3)] * x[np.uint32(col_idx[p + np.uint64(3)])]
        p += np.uint64(4)
    while p < end:
        s0 += values[p] * x[np.uint32(col_idx[p])]
        p += np.uint64(1)
    return (s0 + s1) + (s2 + s3)


def spmv_csr(y, row_ptr, col_idx, values, x):
    for i in range(y.shape[0]):
        y[i] = sparse_dot(values, col_idx, x, row_ptr[i], row_ptr[i + 1])
