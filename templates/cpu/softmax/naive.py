"""kernelsearch
format = 1
operator = "softmax"
doc = "one thread, one row after the other, three passes"
dtypes = ["float32", "float64"]
[[launch]]
kernel = "softmax"
args = ["y", "x"]
"""

import math


def softmax(y, x):
    rows, cols = x.shape
    for i in range(rows):
        top = x[i, 0]
        for j in range(1, cols):
            top = max(top, x[i, j])
        total = ELEM(0)
        for j in range(cols):
            y[i, j] = math.exp(x[i, j] - top)
            total += y[i, j]
        for j in range(cols):
            y[i, j] /= total
