"""kernelsearch
format = 1
operator = "matrix_mul"
doc = "b transposed into workspace; a tile of four by three dot products held in vector registers"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["reassoc", "contract"]
[tunables]
DEPTH = [1024, 512, 2048]
COLUMNS = [48, 24, 96]
HEIGHT = [64, 32, 128]
[workspace]
bt = {dtype = "elem", shape = ["n", "k"]}
[[launch]]
kernel = "transpose"
args = ["bt", "b"]
[[launch]]
kernel = "matrix_mul"
args = ["c", "a", "bt"]
"""

from numba import prange


def transpose(bt, b):
    k, n = b.shape
    strips = (n + 15) // 16
    for strip in prange(strips):
        left = strip * 16
        right = min(n, left + 16)
        for start in range(0, k, 16):
            stop = min(k, start + 16)
            for j in range(left, right):
                for p in range(start, stop):
                    bt[j, p] = b[p, j]


def dot(x, y):
    total = ELEM(0)
    for p in range(x.shape[0]):
        total += x[p] * y[p]
    return total


def dots_4x3(c, i, j, a0, a1, a2, a3, b0, b1, b2):
    s00 = ELEM(0)
    s01 = ELEM(0)
    s02 = ELEM(0)
    s10 = ELEM(0)
    s11 = ELEM(0)
    s12 = ELEM(0)
    s20 = ELEM(0)
    s21 = ELEM(0)
    s22 = ELEM(0)
    s30 = ELEM(0)
    s31 = ELEM(0)
    s32 = ELEM(0)
    for p in range(a0.shape[0]):
        y0 = b0[p]
        y1 = b1[p]
        y2 = b2[p]
        x = a0[p]
        s00 += x * y0
        s01 += x * y1
        s02 += x * y2
        x = a1[p]
        s10 += x * y0
        s11 += x * y1
        s12 += x * y2
        x = a2[p]
        s20 += x * y0
        s21 += x * y1
        s22 += x * y2
        x = a3[p]
        s30 += x * y0
        s31 += x * y1
        s32 += x * y2
    c[i, j] += s00
    c[i, j + 1] += s01
    c[i, j + 2] += s02
    c[i + 1, j] += s10
    c[i + 1, j + 1] += s11
    c[i + 1, j + 2] += s12
    c[i + 2, j] += s20
    c[i + 2, j + 1] += s21
    c[i + 2, j + 2] += s22
    c[i + 3, j] += s30
    c[i + 3, j + 1] += s31
    c[i + 3, j + 2] += s32


def matrix_mul(c, a, bt):
    m, k = a.shape
    n = bt.shape[0]
    tasks = (m + HEIGHT - 1) // HEIGHT
    for task in prange(tasks):
        top = task * HEIGHT
        bottom = min(m, top + HEIGHT)
        low = top + (bottom - top) // 4 * 4
        for i in range(top, bottom):
            c[i].fill(ELEM(0))
        for start in range(0, k, DEPTH):
            stop = min(k, start + DEPTH)
            for left in range(0, n, COLUMNS):
                right = min(n, left + COLUMNS)
                whole = left + (right - left) // 3 * 3
                for i in range(top, low, 4):
                    for j in range(left, whole, 3):
                        dots_4x3(
                            c, i, j,
                            a[i, start:stop], a[i + 1, start:stop],
                            a[i + 2, start:stop], a[i + 3, start:stop],
                            bt[j, start:stop], bt[j + 1, start:stop], bt[j + 2, start:stop],
                        )
                    for j in range(whole, right):
                        for r in range(i, i + 4):
                            c[r, j] += dot(a[r, start:stop], bt[j, start:stop])
                for i in range(low, bottom):
                    for j in range(left, right):
                        c[i, j] += dot(a[i, start:stop], bt[j, start:stop])
