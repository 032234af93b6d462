"""kernelsearch
format = 1
operator = "softmax"
doc = "one thread, polynomial exponentials: no fork for small inputs"
dtypes = ["float32"]
[numba]
fastmath = ["reassoc", "contract"]
[[launch]]
kernel = "softmax"
args = ["y", "x"]
"""

import numpy as np

LOWEST = np.float32(-87.0)
LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.1219444005469057e-4)
HALF = np.float32(0.5)
ZERO = np.float32(0.0)
ONE = np.float32(1.0)
C2 = np.float32(0.4999999325368334)
C3 = np.float32(0.16666517762373118)
C4 = np.float32(0.04166842182023864)
C5 = np.float32(0.008369063461848722)
C6 = np.float32(0.0013813880507593107)
EXPONENT_BIAS = np.int32(127)
MANTISSA_BITS = np.int32(23)
SIGN_SHIFT = np.int32(31)
MAGNITUDE = np.int32(0x7FFFFFFF)


def exp_nonpositive(x):
    # e**x for x <= 0: x = n ln 2 + r, polynomial in r, n into the exponent bits. Without a call it
    # vectorises. Below LOWEST the result would be subnormal and is 0; NaN stays NaN.
    bounded = x if x >= LOWEST else LOWEST
    n = np.int32(bounded * LOG2_E - HALF)
    m = np.float32(n)
    r = (bounded - m * LN2_HIGH) - m * LN2_LOW
    p = ONE + r + r * r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * C6))))
    power = np.int32((n + EXPONENT_BIAS) << MANTISSA_BITS).view(np.float32)
    e = p * power
    return e if x >= LOWEST else (ZERO if x < LOWEST else x)


def ordered(bits):
    # Signed integers that compare as the floats with these bits do; its own inverse.
    return np.int32(bits ^ ((bits >> SIGN_SHIFT) & MAGNITUDE))


def largest(x):
    # An integer maximum vectorises without leave to ignore NaN.
    bits = x.view(np.int32)
    best = np.int32(-2147483648)
    for j in range(bits.shape[0]):
        key = ordered(bits[j])
        best = key if key > best else best
    return np.int32(ordered(best)).view(np.float32)


def exponentials(y, x, top):
    total = ZERO
    for j in range(x.shape[0]):
        e = exp_nonpositive(x[j] - top)
        y[j] = e
        total += e
    return total


def softmax_row(y, x):
    total = exponentials(y, x, largest(x))
    scale = ONE / total
    for j in range(y.shape[0]):
        y[j] *= scale


def softmax(y, x):
    for i in range(x.shape[0]):
        softmax_row(y[i], x[i])
