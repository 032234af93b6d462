"""kernelsearch
format = 1
operator = "stencil_2d"
doc = "tiles narrow enough that the rows above and below are still in the nearest cache"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["reassoc", "contract"]
[tunables]
COLUMNS = [1024, 512, 2048]
ROWS = [64, 256, 16]
[[launch]]
kernel = "stencil_2d"
args = ["dst", "src", "alpha:f32"]
"""

from numba import prange


def copy_part(out, row):
    for j in range(row.shape[0]):
        out[j] = row[j]


def update_part(out, above, row, below, alpha):
    for j in range(out.shape[0]):
        out[j] = row[j + 1] + alpha * (
            above[j] + below[j] + row[j] + row[j + 2] - ELEM(4) * row[j + 1]
        )


def stencil_2d(dst, src, alpha):
    nx, ny = src.shape
    across = (ny + COLUMNS - 1) // COLUMNS
    down = (nx + ROWS - 1) // ROWS
    for tile in prange(across * down):
        left = tile % across * COLUMNS
        right = min(ny, left + COLUMNS)
        first = max(left, 1)
        last = min(right, ny - 1)
        top = tile // across * ROWS
        for i in range(top, min(nx, top + ROWS)):
            if i == 0 or i == nx - 1 or last <= first:
                copy_part(dst[i, left:right], src[i, left:right])
            else:
                update_part(
                    dst[i, first:last],
                    src[i - 1, first:last],
                    src[i, first - 1 : last + 1],
                    src[i + 1, first:last],
                    ELEM(alpha),
                )
                if left == 0:
                    dst[i, 0] = src[i, 0]
                if right == ny:
                    dst[i, ny - 1] = src[i, ny - 1]
