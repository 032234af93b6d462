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

import numpy as np
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


def dot(a, bt, i, j, start, stop):
    total = ELEM(0)
    for p in range(np.uint64(start), np.uint64(stop)):
        total += a[i, p] * bt[j, p]
    return total


def dots_4x3(c, a, bt, i, j, start, stop):
    # Unsigned positions need no test for Python's negative indices.
    i0 = np.uint64(i)
    i1 = np.uint64(i + 1)
    i2 = np.uint64(i + 2)
    i3 = np.uint64(i + 3)
    j0 = np.uint64(j)
    j1 = np.uint64(j + 1)
    j2 = np.uint64(j + 2)
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
    for p in range(np.uint64(start), np.uint64(stop)):
        y0 = bt[j0, p]
        y1 = bt[j1, p]
        y2 = bt[j2, p]
        x0 = a[i0, p]
        x1 = a[i1, p]
        x2 = a[i2, p]
        x3 = a[i3, p]
        s00 += x0 * y0
        s01 += x0 * y1
        s02 += x0 * y2
        s10 += x1 * y0
        s11 += x1 * y1
        s12 += x1 * y2
        s20 += x2 * y0
        s21 += x2 * y1
        s22 += x2 * y2
        s30 += x3 * y0
        s31 += x3 * y1
        s32 += x3 * y2
    c[i0, j0] += s00
    c[i0, j1] += s01
    c[i0, j2] += s02
    c[i1, j0] += s10
    c[i1, j1] += s11
    c[i1, j2] += s12
    c[i2, j0] += s20
    c[i2, j1] += s21
    c[i2, j2] += s22
    c[i3, j0] += s30
    c[i3, j1] += s31
    c[i3, j2] += s32


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
                        dots_4x3(c, a, bt, i, j, start, stop)
                    for j in range(whole, right):
                        for r in range(i, i + 4):
                            c[r, j] += dot(a, bt, r, j, start, stop)
                for i in range(low, bottom):
                    for j in range(left, right):
                        c[i, j] += dot(a, bt, i, j, start, stop)
