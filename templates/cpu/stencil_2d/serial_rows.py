"""kernelsearch
format = 1
operator = "stencil_2d"
doc = "one thread, branch-free vectorised rows: no fork for small grids"
dtypes = ["float32", "float64"]
[numba]
fastmath = ["reassoc", "contract"]
[[launch]]
kernel = "stencil_2d"
args = ["dst", "src", "alpha:f32"]
"""


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


def stencil_2d(dst, src, alpha):
    for i in range(src.shape[0]):
        update_row(dst, src, i, alpha)
