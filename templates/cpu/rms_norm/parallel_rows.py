"""kernelsearch
format = 1
operator = "rms_norm"
doc = "bands of rows over the threads, vectorised sum of squares"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["reassoc", "contract"]
[tunables]
ROWS_PER_TASK = [16, 1, 4, 64]
[[launch]]
kernel = "rms_norm"
args = ["y", "x", "weight", "bias", "eps:f32"]
"""

import numpy as np
from numba import prange


def normalise_row(y, x, weight, bias, eps):
    cols = x.shape[0]
    total = ELEM(0)
    for j in range(cols):
        total += x[j] * x[j]
    scale = ELEM(1) / np.sqrt(total / ELEM(cols) + ELEM(eps))
    for j in range(cols):
        y[j] = x[j] * scale * weight[j] + bias[j]


def rms_norm(y, x, weight, bias, eps):
    rows = x.shape[0]
    tasks = (rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    for task in prange(tasks):
        for i in range(task * ROWS_PER_TASK, min(rows, (task + 1) * ROWS_PER_TASK)):
            normalise_row(y[i], x[i], weight, bias, eps)
