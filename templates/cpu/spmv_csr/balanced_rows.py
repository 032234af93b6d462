"""kernelsearch
format = 1
operator = "spmv_csr"
doc = "whole rows over the threads, cut by binary search so that each task has as many nonzeros"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["contract"]
[tunables]
TASKS_PER_CORE = [8, 1, 2, 32]
CORES = [2, 1, 4, 8, 16, 32, 64]
[constraints]
used = "CORES <= cores and 2 * CORES > min(cores, 64)"
[[launch]]
kernel = "spmv_csr"
args = ["y", "row_ptr", "col_idx", "values", "x"]
"""

import numpy as np
from numba import prange


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


def first_row(row_ptr, position):
    # The first row that begins at or after a position.
    low = 0
    high = row_ptr.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if row_ptr[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low


def spmv_csr(y, row_ptr, col_idx, values, x):
    rows = y.shape[0]
    tasks = TASKS_PER_CORE * CORES
    nonzeros = np.int64(values.shape[0])
    for task in prange(tasks):
        first = first_row(row_ptr, nonzeros * task // tasks) if task > 0 else 0
        last = first_row(row_ptr, nonzeros * (task + 1) // tasks) if task + 1 < tasks else rows
        for i in range(first, last):
            y[i] = sparse_dot(values, col_idx, x, row_ptr[i], row_ptr[i + 1])
