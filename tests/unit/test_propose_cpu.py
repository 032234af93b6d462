"""Every Numba mutation passes the allow-list and computes the same thing, compiled too."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kernelsearch.operator import Workload
from kernelsearch.propose.rules import RULES, admitted
from kernelsearch.resources import template_paths
from kernelsearch.variant import Variant, load_variant, parse_variant
from kernelsearch.verify_bound import bound
from tests.support import textbook
from tests.support.numba_runner import run_numba

CPU_RULES = [r for r in RULES if r.language == "cpu"]
NAMES = list(textbook.NUMBA)


def children(variant: Variant) -> list[tuple[str, Variant]]:
    site = textbook.site(variant)
    found = []
    for rule in CPU_RULES:
        for change in rule.apply(site):
            child = admitted(change, site.request)
            assert child is not None, f"{rule.name} of {variant.path} is not admitted"
            found.append((rule.name, child))
    return found


def textbook_variant(name: str) -> Variant:
    return parse_variant(textbook.NUMBA[name], "cpu", f"textbook_{name}.py")


def parents(name: str) -> list[Variant]:
    return [textbook_variant(name), *(load_variant(p) for p in template_paths(name, "cpu")[:1])]


def assert_right(tag: str, variant: Variant, compiled: bool, seed: int = 2) -> None:
    operator = textbook.operator(variant.operator)
    params = random.Random(seed).choice(variant.valid_params(textbook.CPU.facts, "float32"))
    for sizes in textbook.SIZES[operator.name]:
        arrays = textbook.inputs(operator, sizes)
        outputs = run_numba(operator, variant, params, sizes, arrays, compiled)
        expected = operator.reference(arrays, operator.scalar_values(), None)
        for tensor in operator.outputs:
            reference = expected[tensor.name].astype(np.float64)
            scale = np.abs(reference)
            if operator.error.scale is not None:
                scale = operator.error.scale(arrays, operator.scalar_values(), None)[tensor.name]
            allowed = bound(operator, Workload(sizes), tensor, "float32", reference, scale)
            error = np.abs(outputs[tensor.name] - reference)
            assert (error <= allowed).all(), f"{tag} {params} {sizes}\n{variant.source}"


def kernel(body: str, arguments: str = "y, x, weight, bias") -> Variant:
    """Return an rms_norm variant with a given body (only its structure matters)."""
    names = ", ".join(f'"{a.strip()}"' for a in arguments.split(","))
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return parse_variant(
        f'"""kernelsearch\nformat = 1\noperator = "rms_norm"\n[[launch]]\nkernel = "f"\n'
        f'args = [{names}]\n"""\n\n\ndef f({arguments}):\n{lines}\n', "cpu",
    )  # fmt: skip


def applied(variant: Variant) -> set[str]:
    return {name for name, _ in children(variant)}


def test_the_textbook_kernels_meet_many_rules() -> None:
    found = {n: applied(textbook_variant(n)) for n in NAMES}
    assert len(set().union(*found.values())) >= 8
    assert all("parallel" in names for names in found.values())
    assert {"tile", "interchange"} <= found["matrix_mul"] & found["stencil_2d"]


@pytest.mark.parametrize("name", NAMES)
def test_every_mutation_computes_the_same(name: str) -> None:
    for parent in parents(name):
        for rule, child in [("parent", parent), *children(parent)]:
            assert_right(rule, child, compiled=False)


@pytest.mark.parametrize("name", NAMES)
def test_mutations_of_mutations_compute_the_same(name: str) -> None:
    for parent in parents(name):
        for first, child in children(parent):
            for second, grandchild in children(child):
                assert_right(f"{first}+{second}", grandchild, compiled=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_every_mutation_computes_the_same_compiled(name: str) -> None:
    for rule, child in children(textbook_variant(name)):
        assert_right(rule, child, compiled=True)


def test_interchange_of_a_product_runs_along_memory() -> None:
    sources = [c.source for n, c in children(textbook_variant("matrix_mul")) if n == "interchange"]
    assert any("c[i, j] += a[i, p] * b[p, j]" in s for s in sources)


@pytest.mark.parametrize(
    "body",
    [
        # A sum carried from one row to the next.
        "t = 0.0\nfor i in range(y.shape[0]):\n    t += x[i, 0]\n    y[i, 0] = t",
        # A neighbour's result is read.
        "for i in range(1, y.shape[0]):\n    y[i, 0] = y[i - 1, 0] + x[i, 0]",
        # Every pass writes the same element.
        "for i in range(y.shape[0]):\n    y[0, 0] = x[i, 0]",
        # Whether a later pass runs depends on an earlier one.
        "for i in range(y.shape[0]):\n    if x[i, 0] > 0:\n        break\n    y[i, 0] = x[i, 0]",
        # The last pass's value is used afterwards.
        "for i in range(y.shape[0]):\n    t = x[i, 0]\n    y[i, 0] = t\ny[0, 0] = t",
        # A value that only some passes set.
        "t = 0.0\nfor i in range(y.shape[0]):\n    if x[i, 0] > 0:\n        t = x[i, 0]\n"
        "    y[i, 0] = t",
    ],
)
def test_dependent_loops_are_not_run_in_parallel(body: str) -> None:
    assert "parallel" not in applied(kernel(body))


def test_hoisting_keeps_an_empty_loop_from_reading() -> None:
    body = "for i in range(y.shape[0]):\n    for j in range(y.shape[1]):\n" \
           "        y[i, j] = x[i, j] * weight[i] / bias[i]"  # fmt: skip
    child = next(c for n, c in children(kernel(body)) if n == "hoist")
    assert "if 0 < y.shape[1]:" in child.source
    assert "kept = weight[i]" in child.source


def test_hoisting_leaves_conditional_and_changing_reads() -> None:
    body = "for j in range(y.shape[1]):\n    y[0, j] = y[0, 0] + (weight[0] if j > 1 else x[0, j])"
    assert "hoist" not in applied(kernel(body))


def test_fast_math_stays_within_the_policy() -> None:
    flags = [c.numba["fastmath"] for n, c in children(textbook_variant("spmv_csr"))
             if n == "relax_math"]  # fmt: skip
    assert flags
    assert all(isinstance(f, list) and "nnan" not in f for f in flags)


def test_tiles_of_a_parallel_loop_are_counted_by_ones() -> None:
    first = next(c for n, c in children(textbook_variant("matrix_mul")) if n == "parallel")
    child = next(c for n, c in children(first) if n == "tile")
    assert "in prange((m - 0 + TILE - 1) // TILE):" in child.source
    assert_right("parallel+tile", child, compiled=False)
