"""kernelsearch
format = 1
operator = "rms_norm"
doc = "one thread, the sum split into lanes held in named accumulators: no fork for short inputs"
dtypes = ["float32", "float64"]
[numba]
fastmath = ["contract"]
[tunables]
LANES = [8, 4, 16]
[[launch]]
kernel = "rms_norm"
args = ["y", "x", "weight", "bias", "eps:f32"]
"""

import numpy as np


def sum_of_squares(x):
    cols = x.shape[0]
    parts = np.zeros(LANES, ELEM)
    whole = cols // LANES * LANES
    for j in range(0, whole, LANES):
        for k in range(LANES):
            parts[k] += x[j + k] * x[j + k]
    total = ELEM(0)
    for k in range(LANES):
        total += parts[k]
    for j in range(whole, cols):
        total += x[j] * x[j]
    return total


def rms_norm(y, x, weight, bias, eps):
    rows, cols = x.shape
    for i in range(rows):
        total = sum_of_squares(x[i])
        scale = ELEM(1) / np.sqrt(total / ELEM(cols) + ELEM(eps))
        for j in range(cols):
            y[i, j] = x[i, j] * scale * weight[j] + bias[j]
