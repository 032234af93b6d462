"""Rewrite float source as double: the float64 edition of an imported kernel."""

from __future__ import annotations

import re


def double_edition(text: str) -> str | None:
    """Return source that computes in double what ``text`` computes in float; None: it cannot be."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/|^\s*#\s*include[^\n]*", "", text, flags=re.S | re.M)
    if re.search(
        r"\b(__half|half|half2|__nv_bfloat16|wmma|mma_sync|__float_as_\w+|__\w+_as_float|atomicCAS|"
        r"union|asm|__asm__|__fmaf_\w+|__f\w+_r[nzud]|float\s*\*\s*\)\s*&|cublas\w*)\b", bare,
    ):  # fmt: skip
        return None
    text = re.sub(r"\bfloat([234]?)\b", r"double\1", text)
    text = re.sub(r"\bmake_float([234])\b", r"make_double\1", text)
    text = re.sub(
        r"(?<![\w.])(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)[fF]\b", _real, text
    )
    for name in _MATH:
        text = re.sub(rf"\b{name}f\b(?=\s*\()", name, text)
    text = re.sub(r"\b__(exp|log|sin|cos|tan|pow|log2|log10)f\b", r"\1", text)
    text = re.sub(r"\b__fdividef\s*\(([^,()]+),([^()]+)\)", r"((\1) / (\2))", text)
    text = re.sub(r"\b__frcp_rn\b", "1.0 / ", text)
    return text.replace("FLT_MAX", "1.7976931348623157e308").replace("FLT_MIN", "2.3e-308")


_MATH = (
    "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sincos",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "sqrt", "rsqrt", "cbrt", "pow", "fabs",
    "floor", "ceil", "round", "rint", "trunc", "fmax", "fmin", "fmod", "fma", "erf", "erfc",
    "hypot", "copysign", "sinpi", "cospi", "norm3d", "rnorm3d", "tgamma", "lgamma", "ldexp",
)  # fmt: skip


def _real(match: re.Match[str]) -> str:
    digits = match[1]
    return digits if re.search(r"[.eE]", digits) else f"{digits}.0"
