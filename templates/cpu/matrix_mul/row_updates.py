"""kernelsearch
format = 1
operator = "matrix_mul"
doc = "rows over the threads, the innermost loop along rows of b and c"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["contract"]
[tunables]
ROWS_PER_TASK = [4, 1, 16]
[[launch]]
kernel = "matrix_mul"
args = ["c", "a", "b"]
"""

from numba import prange


def add_scaled(out, row, factor):
    for j in range(out.shape[0]):
        out[j] += factor * row[j]


def matrix_mul(c, a, b):
    m, k = a.shape
    tasks = (m + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    for task in prange(tasks):
        for i in range(task * ROWS_PER_TASK, min(m, (task + 1) * ROWS_PER_TASK)):
            c[i].fill(ELEM(0))
            for p in range(k):
                add_scaled(c[i], b[p], a[i, p])
