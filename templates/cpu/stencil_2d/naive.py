"""kernelsearch
format = 1
operator = "stencil_2d"
doc = "one thread, two loops over the interior, the edge copied"
dtypes = ["float32", "float64"]
[[launch]]
kernel = "stencil_2d"
args = ["dst", "src", "alpha:f32"]
"""


def stencil_2d(dst, src, alpha):
    nx, ny = src.shape
    for i in range(1, nx - 1):
        for j in range(1, ny - 1):
            dst[i, j] = src[i, j] + ELEM(alpha) * (
                src[i - 1, j] + src[i + 1, j] + src[i, j - 1] + src[i, j + 1]
                - ELEM(4) * src[i, j]
            )
    for j in range(ny):
        dst[0, j] = src[0, j]
        dst[nx - 1, j] = src[nx - 1, j]
    for i in range(nx):
        dst[i, 0] = src[i, 0]
        dst[i, ny - 1] = src[i, ny - 1]
