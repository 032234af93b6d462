"""kernelsearch
format = 1
operator = "stencil_2d"
doc = "two rows at once: a loaded row serves as the middle of one and the neighbour of the other"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["reassoc", "contract"]
[tunables]
BAND = [32, 8, 128]
[[launch]]
kernel = "stencil_2d"
args = ["dst", "src", "alpha:f32"]
"""

from numba import prange


def copy_row(out, row):
    for j in range(row.shape[0]):
        out[j] = row[j]


def interior(out, above, row, below, alpha):
    # out, above and below begin one element further in than row, which has an edge on both sides.
    for j in range(out.shape[0]):
        out[j] = row[j + 1] + alpha * (
            above[j] + below[j] + row[j] + row[j + 2] - ELEM(4) * row[j + 1]
        )


def update_row(dst, src, i, alpha):
    nx, ny = src.shape
    if i == 0 or i == nx - 1 or ny < 3:
        copy_row(dst[i], src[i])
        return
    interior(
        dst[i, 1 : ny - 1], src[i - 1, 1 : ny - 1], src[i], src[i + 1, 1 : ny - 1], ELEM(alpha)
    )
    dst[i, 0] = src[i, 0]
    dst[i, ny - 1] = src[i, ny - 1]


def interior_pair(out0, out1, above, row0, row1, below, alpha):
    for j in range(out0.shape[0]):
        middle0 = row0[j + 1]
        middle1 = row1[j + 1]
        out0[j] = middle0 + alpha * (above[j] + middle1 + row0[j] + row0[j + 2] - ELEM(4) * middle0)
        out1[j] = middle1 + alpha * (middle0 + below[j] + row1[j] + row1[j + 2] - ELEM(4) * middle1)


def update_pair(dst, src, i, alpha):
    nx, ny = src.shape
    if i == 0 or i + 1 >= nx - 1 or ny < 3:
        update_row(dst, src, i, alpha)
        if i + 1 < nx:
            update_row(dst, src, i + 1, alpha)
        return
    last = ny - 1
    interior_pair(
        dst[i, 1:last], dst[i + 1, 1:last], src[i - 1, 1:last], src[i], src[i + 1],
        src[i + 2, 1:last], ELEM(alpha),
    )
    for k in range(i, i + 2):
        dst[k, 0] = src[k, 0]
        dst[k, last] = src[k, last]


def stencil_2d(dst, src, alpha):
    nx = src.shape[0]
    bands = (nx + BAND - 1) // BAND
    for band in prange(bands):
        for i in range(band * BAND, min(nx, (band + 1) * BAND), 2):
            update_pair(dst, src, i, alpha)
