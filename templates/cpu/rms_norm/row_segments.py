"""kernelsearch
format = 1
operator = "rms_norm"
doc = "a row is cut into segments shared by the threads: for few, long rows"
dtypes = ["float32", "float64"]
[numba]
parallel = true
fastmath = ["reassoc", "contract"]
[tunables]
SEGMENT = [4096, 1024, 16384]
[workspace]
partial = {dtype = "elem", shape = ["rows", "ceildiv(cols, SEGMENT)"]}
[[launch]]
kernel = "sum_segments"
args = ["partial", "x"]
[[launch]]
kernel = "scale_segments"
args = ["y", "x", "weight", "bias", "partial", "eps:f32"]
"""

import numpy as np
from numba import prange


def sum_of_squares(x):
    total = ELEM(0)
    for j in range(x.shape[0]):
        total += x[j] * x[j]
    return total


def scale_segment(y, x, weight, bias, scale):
    for j in range(x.shape[0]):
        y[j] = x[j] * scale * weight[j] + bias[j]


def sum_segments(partial, x):
    rows, segments = partial.shape
    cols = x.shape[1]
    for task in prange(rows * segments):
        i = task // segments
        s = task % segments
        first = s * SEGMENT
        partial[i, s] = sum_of_squares(x[i, first : min(cols, first + SEGMENT)])


def scale_segments(y, x, weight, bias, partial, eps):
    rows, segments = partial.shape
    cols = x.shape[1]
    for task in prange(rows * segments):
        i = task // segments
        first = task % segments * SEGMENT
        last = min(cols, first + SEGMENT)
        total = ELEM(0)
        for s in range(segments):
            total += partial[i, s]
        scale = ELEM(1) / np.sqrt(total / ELEM(cols) + ELEM(eps))
        scale_segment(
            y[i, first:last], x[i, first:last], weight[first:last], bias[first:last], scale
        )
