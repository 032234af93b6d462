"""kernelsearch
format = 1
operator = "spmv_csr"
doc = "equal numbers of nonzeros over the threads, rows cut anywhere and their ends added afterwards"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["contract"]
[tunables]
CHUNK = [16384, 4096, 65536]
[workspace]
head = {dtype = "elem", shape = ["ceildiv(rows + nnz, CHUNK)"]}
head_row = {dtype = "int64", shape = ["ceildiv(rows + nnz, CHUNK)"]}
[[launch]]
kernel = "sum_chunks"
args = ["y", "head", "head_row", "row_ptr", "col_idx", "values", "x"]
[[launch]]
kernel = "add_heads"
args = ["y", "head", "head_row"]
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


def rows_before(row_ptr, diagonal):
    # Walking down the rows and along the nonzeros, how many rows have ended after so many steps.
    low = 0
    high = row_ptr.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if np.int64(row_ptr[middle + 1]) + middle + 1 <= diagonal:
            low = middle + 1
        else:
            high = middle
    return low


def sum_chunks(y, head, head_row, row_ptr, col_idx, values, x):
    rows = y.shape[0]
    steps = rows + np.int64(values.shape[0])
    for chunk in prange(head.shape[0]):
        start = chunk * CHUNK
        stop = min(steps, start + CHUNK)
        row = rows_before(row_ptr, start)
        last_row = rows_before(row_ptr, stop)
        position = start - row
        end = stop - last_row
        # The first row may have begun in an earlier chunk: its rest is added later.
        head_row[chunk] = -1
        if row < last_row:
            rest = sparse_dot(values, col_idx, x, position, row_ptr[row + 1])
            if position > row_ptr[row]:
                head[chunk] = rest
                head_row[chunk] = row
            else:
                y[row] = rest
            for i in range(row + 1, last_row):
                y[i] = sparse_dot(values, col_idx, x, row_ptr[i], row_ptr[i + 1])
            if last_row < rows and end > row_ptr[last_row]:
                y[last_row] = sparse_dot(values, col_idx, x, row_ptr[last_row], end)
        elif row < rows and end > position:
            part = sparse_dot(values, col_idx, x, position, end)
            if position > row_ptr[row]:
                head[chunk] = part
                head_row[chunk] = row
            else:
                y[row] = part


def add_heads(y, head, head_row):
    for chunk in range(head.shape[0]):
        if head_row[chunk] >= 0:
            y[head_row[chunk]] += head[chunk]
