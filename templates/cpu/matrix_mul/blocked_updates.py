"""kernelsearch
format = 1
operator = "matrix_mul"
doc = "blocks of b that stay in cache, two rows of c and four of b in one pass"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["contract"]
[tunables]
DEPTH = [128, 64, 256]
WIDTH = [512, 256, 1024]
HEIGHT = [64, 32, 128]
[[launch]]
kernel = "matrix_mul"
args = ["c", "a", "b"]
"""

import numpy as np
from numba import prange


def update_pair(c, a, b, i, p, left, right):
    # Unsigned positions need no test for Python's negative indices.
    i0 = np.uint64(i)
    i1 = np.uint64(i + 1)
    k0 = np.uint64(p)
    k1 = np.uint64(p + 1)
    k2 = np.uint64(p + 2)
    k3 = np.uint64(p + 3)
    p0 = a[i0, k0]
    p1 = a[i0, k1]
    p2 = a[i0, k2]
    p3 = a[i0, k3]
    q0 = a[i1, k0]
    q1 = a[i1, k1]
    q2 = a[i1, k2]
    q3 = a[i1, k3]
    for j in range(np.uint64(left), np.uint64(right)):
        v0 = b[k0, j]
        v1 = b[k1, j]
        v2 = b[k2, j]
        v3 = b[k3, j]
        c[i0, j] = c[i0, j] + p0 * v0 + p1 * v1 + p2 * v2 + p3 * v3
        c[i1, j] = c[i1, j] + q0 * v0 + q1 * v1 + q2 * v2 + q3 * v3


def update_one(c, a, b, i, p, left, right):
    factor = a[i, p]
    row = np.uint64(i)
    depth = np.uint64(p)
    for j in range(np.uint64(left), np.uint64(right)):
        c[row, j] += factor * b[depth, j]


def matrix_mul(c, a, b):
    m, k = a.shape
    n = b.shape[1]
    tasks = (m + HEIGHT - 1) // HEIGHT
    for task in prange(tasks):
        top = task * HEIGHT
        bottom = min(m, top + HEIGHT)
        for i in range(top, bottom):
            c[i].fill(ELEM(0))
        for left in range(0, n, WIDTH):
            right = min(n, left + WIDTH)
            for start in range(0, k, DEPTH):
                stop = min(k, start + DEPTH)
                whole = start + (stop - start) // 4 * 4
                for i in range(top, bottom - 1, 2):
                    for p in range(start, whole, 4):
                        update_pair(c, a, b, i, p, left, right)
                    for p in range(whole, stop):
                        update_one(c, a, b, i, p, left, right)
                        update_one(c, a, b, i + 1, p, left, right)
                if (bottom - top) % 2 == 1:
                    for p in range(start, stop):
                        update_one(c, a, b, bottom - 1, p, left, right)
