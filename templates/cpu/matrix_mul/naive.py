"""kernelsearch
format = 1
operator = "matrix_mul"
doc = "one thread, three loops, one dot product after the other"
dtypes = ["float32", "float64"]
[[launch]]
kernel = "matrix_mul"
args = ["c", "a", "b"]
"""


def matrix_mul(c, a, b):
    m, k = a.shape
    n = b.shape[1]
    for i in range(m):
        for j in range(n):
            total = ELEM(0)
            for p in range(k):
                total += a[i, p] * b[p, j]
            c[i, j] = total
