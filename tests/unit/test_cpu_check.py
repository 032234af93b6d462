"""The allow-list of Numba sources."""

from __future__ import annotations

import ast

import pytest

from kernelsearch.errors import RejectedError
from kernelsearch.resources import template_paths
from kernelsearch.targets.cpu_check import check_source
from kernelsearch.variant import load_variant

OPERATORS = ("rms_norm", "softmax", "matrix_mul", "spmv_csr", "stencil_2d")
GOOD = '''"""kernelsearch"""
import math
import numpy as np
from numba import prange

HALF = ELEM(0.5) * 2 + math.sqrt(4.0)


def helper(x):
    return x.shape[0] + WIDTH


def k(y, x):
    """Says what it does."""
    for i in prange(helper(x)):
        if MODE == "a" and WIDTH > 2:
            y[i, 0:2] = np.sqrt(x[i]) if i < 3 else math.exp(HALF)
        else:
            y[i] += 1
'''


def body(text: str) -> str:
    return "import math\nimport numpy as np\n\ndef k(y, x):\n" + "".join(
        f"    {line}\n" for line in text.splitlines()
    )


def test_good_source_is_bound_and_ordered() -> None:
    checked = check_source(GOOD, "good.py", {"WIDTH": 4, "MODE": "b"})
    assert checked.names == ("helper", "k")
    text = ast.unparse(checked.functions[1])
    assert "sqrt" not in text  # the branch for MODE == "a" is gone
    assert "x.shape[0] + 4" in ast.unparse(checked.functions[0])


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        ("import os", "Import"),
        ("y[0] = np.load(x)", "numpy.load"),
        ("y[0] = np.lib.npyio", "attribute npyio"),
        ("y[0] = np.ctypeslib", "numpy.ctypeslib"),
        ("y[0] = np.memmap(x)", "numpy.memmap"),
        ("y[0] = x.__class__", "attribute __class__"),
        ("y[0] = x.ctypes.data", "attribute data"),
        ("x.tofile(y)", "method tofile"),
        ("exec(x)", "call exec"),
        ("y[0] = getattr(x, y)", "call getattr"),
        ("y[0] = open", "name"),
        ("y[0] = __builtins__", "name"),
        ("a = np\ny[0] = a.load", "name"),
        ("y[0] = (lambda: 1)()", "call"),
        ("y[0] = f'{x}'", "JoinedStr"),
        ("y[0] = 'text'", "Constant"),
        ("y[0] = [i for i in x]", "ListComp"),
        ("try:\n    y[0] = 1\nexcept ValueError:\n    pass", "Try"),
        ("with x:\n    pass", "With"),
        ("global y", "Global"),
        ("def inner():\n    pass", "FunctionDef"),
        ("class A:\n    pass", "ClassDef"),
        ("raise ValueError", "Raise"),
        ("assert x", "Assert"),
        ("for v in x:\n    pass", "for"),
        ("y[0] = x in y", "comparison"),
        ("y[0] = 1j", "Constant"),
        ("np = x", "rebinding"),
        ("range = x", "rebinding"),
        ("__a = x", "dunder name"),
        ("y[0] = k(y, x)", "recursion"),
        ("y[0] = ((1, 2) * 1000)[0]", "tuple"),
        ("y[0] = np.sum(x, axis=0)", "keyword argument"),
        ("y[0] = 99999999999999999999999", "number"),
        ("y[0] = " + "-" * 80 + "1", "nesting"),
        ("y[0] = (" + "1, " * 80 + ")", "size"),
    ],
)
def test_refused_in_a_kernel(text: str, construct: str) -> None:
    with pytest.raises(RejectedError) as caught:
        check_source(body(text), "bad.py", {})
    evidence = caught.value.evidence
    assert evidence["construct"] == construct
    assert str(caught.value).startswith(f"bad.py:{evidence['line']}:{evidence['column']}: ")
    assert isinstance(evidence["line"], int)


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        ("import os", "import"),
        ("import numpy", "import"),
        ("from numba import njit", "import"),
        ("from numba import prange as range", "import"),
        ("from . import x", "import"),
        ("@staticmethod\ndef k(x):\n    pass", "decorator"),
        ("def k(x=print):\n    pass", "default argument"),
        ("def k(*x):\n    pass", "argument"),
        ("def k(x: int):\n    pass", "annotation"),
        ("for i in range(3):\n    pass", "For"),
        ("A = 2 ** 80", "BinOp"),
        ("A = 'x' * 10", "Constant"),
        ("A = B", "name"),
        ("A, B = 1, 2", "assignment"),
        ("A = 1\nA = 2", "rebinding"),
        ("ELEM = 1", "rebinding"),
        ("W = 1", "rebinding"),
        ("import math\nA = math.__loader__", "math.__loader__"),
        ("A = open(1)", "call"),
        ("def a(x):\n    return b(x)\ndef b(x):\n    return a(x)", "recursion"),
        ("print(1)", "Expr"),
        ("k = (", "syntax"),
    ],
)
def test_refused_at_module_level(text: str, construct: str) -> None:
    with pytest.raises(RejectedError) as caught:
        check_source(text, "bad.py", {"W": 3})
    assert caught.value.evidence["construct"] == construct


def test_names_need_their_import() -> None:
    with pytest.raises(RejectedError, match="not imported"):
        check_source("def k(y):\n    y[0] = np.sqrt(2.0)\n", "bad.py", {})


def test_large_and_exponential_sources_are_refused() -> None:
    many = "def k(y):\n" + "    y[0] = y[1] + y[2]\n" * 4000
    with pytest.raises(RejectedError, match="syntax nodes"):
        check_source(many, "bad.py", {})
    chain = "def f0(x):\n    return x\n" + "".join(
        f"def f{i}(x):\n    return {' + '.join([f'f{i - 1}(x)'] * 8)}\n" for i in range(1, 9)
    )
    with pytest.raises(RejectedError, match="expands to more"):
        check_source(chain, "bad.py", {})


@pytest.mark.parametrize("operator", OPERATORS)
def test_shipped_templates_pass(operator: str) -> None:
    paths = template_paths(operator, "cpu")
    assert paths[0].stem == "naive"
    assert len(paths) >= 4
    for path in paths:
        variant = load_variant(path)
        params = next(variant.combinations())
        checked = check_source(variant.source, path.name, params)
        assert {s.kernel for s in variant.steps} <= set(checked.names)
