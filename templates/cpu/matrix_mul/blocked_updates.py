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

from numba import prange


def update_pair(c0, c1, b0, b1, b2, b3, a0, a1):
    p0 = a0[0]
    p1 = a0[1]
    p2 = a0[2]
    p3 = a0[3]
    q0 = a1[0]
    q1 = a1[1]
    q2 = a1[2]
    q3 = a1[3]
    for j in range(c0.shape[0]):
        v0 = b0[j]
        v1 = b1[j]
        v2 = b2[j]
        v3 = b3[j]
        c0[j] = c0[j] + p0 * v0 + p1 * v1 + p2 * v2 + p3 * v3
        c1[j] = c1[j] + q0 * v0 + q1 * v1 + q2 * v2 + q3 * v3


def update_one(c0, b0, factor):
    for j in range(c0.shape[0]):
        c0[j] += factor * b0[j]


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
                        update_pair(
                            c[i, left:right], c[i + 1, left:right],
                            b[p, left:right], b[p + 1, left:right],
                            b[p + 2, left:right], b[p + 3, left:right],
                            a[i, p : p + 4], a[i + 1, p : p + 4],
                        )
                    for p in range(whole, stop):
                        update_one(c[i, left:right], b[p, left:right], a[i, p])
                        update_one(c[i + 1, left:right], b[p, left:right], a[i + 1, p])
                if (bottom - top) % 2 == 1:
                    for p in range(start, stop):
                        update_one(c[bottom - 1, left:right], b[p, left:right], a[bottom - 1, p])
