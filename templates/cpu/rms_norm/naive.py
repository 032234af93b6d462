"""kernelsearch
format = 1
operator = "rms_norm"
doc = "one thread, one row after the other, two passes"
dtypes = ["float32", "float64"]
[[launch]]
kernel = "rms_norm"
args = ["y", "x", "weight", "bias", "eps:f32"]
"""

import math


def rms_norm(y, x, weight, bias, eps):
    rows, cols = x.shape
    for i in range(rows):
        total = ELEM(0)
        for j in range(cols):
            total += x[i, j] * x[i, j]
        scale = ELEM(1) / ELEM(math.sqrt(total / cols + eps))
        for j in range(cols):
            y[i, j] = x[i, j] * scale * weight[j] + bias[j]
