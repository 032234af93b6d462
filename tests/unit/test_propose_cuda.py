"""Every CUDA mutation compiles, and computes the same thing (on an emulator: no GPU is needed)."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from kernelsearch.operator import Workload
from kernelsearch.propose.rules import RULES, admitted
from kernelsearch.resources import template_paths
from kernelsearch.variant import Variant, load_variant, parse_variant
from kernelsearch.verify_bound import bound
from tests.support import textbook
from tests.support.cuda_emulator import Run, emulate

CUDA_RULES = [r for r in RULES if r.language == "cuda"]
NAMES = list(textbook.CUDA)


def children(variant: Variant) -> list[tuple[str, Variant]]:
    """Return every change of every rule; each must be fit for use."""
    site = textbook.site(variant)
    found = []
    for rule in CUDA_RULES:
        for change in rule.apply(site):
            child = admitted(change, site.request)
            assert child is not None, f"{rule.name} of {variant.path} is not admitted"
            assert child.hash != variant.hash
            found.append((rule.name, child))
    return found


def textbook_variant(name: str) -> Variant:
    return parse_variant(textbook.CUDA[name], "cuda", f"textbook_{name}.cu")


def applied(variant: Variant) -> set[str]:
    return {name for name, _ in children(variant)}


def one(variant: Variant, rule: str) -> Variant:
    return next(c for n, c in children(variant) if n == rule)


def small_params(variant: Variant, pick: random.Random) -> dict[str, int | str]:
    """Return valid params, of a small block where there is one: the emulator's threads are real."""

    def threads(params: dict[str, int | str]) -> int:
        operator = textbook.operator(variant.operator)
        plan = variant.plan(
            params, textbook.SIZES[variant.operator][0], operator.scalar_values(),
            textbook.GPU.facts, "float32",
        )  # fmt: skip
        return max(math.prod(s.block) for s in plan.steps)  # type: ignore[union-attr]

    every = variant.valid_params(textbook.GPU.facts, "float32")
    small = [p for p in every if threads(p) <= 64]
    return pick.choice(small or every)


def assert_right(items: list[tuple[str, Variant]], folder: Path, seed: int = 1) -> None:
    """Assert that every variant computes its operator, tails and all."""
    pick = random.Random(seed)
    operator = textbook.operator(items[0][1].operator)
    runs, tags = [], []
    for tag, variant in items:
        params = small_params(variant, pick)
        for sizes in textbook.SIZES[operator.name]:
            runs.append(Run(variant, params, sizes, textbook.inputs(operator, sizes)))
            tags.append(f"{tag} {params} {sizes}")
    outputs = emulate(operator, runs, textbook.GPU.facts, folder)
    for tag, run, output in zip(tags, runs, outputs, strict=True):
        expected = operator.reference(run.arrays, operator.scalar_values(), None)
        for tensor in operator.outputs:
            reference = expected[tensor.name].astype(np.float64)
            scale = np.abs(reference)
            if operator.error.scale is not None:
                scale = operator.error.scale(run.arrays, operator.scalar_values(), None)[
                    tensor.name
                ]
            allowed = bound(operator, Workload(run.sizes), tensor, "float32", reference, scale)
            assert (np.abs(output[tensor.name] - reference) <= allowed).all(), tag


def test_the_textbook_kernels_meet_many_rules() -> None:
    per_kernel = {n: applied(textbook_variant(n)) for n in NAMES}
    assert len(set().union(*per_kernel.values())) >= 12
    assert {"vectorise", "warp_shuffle", "read_only", "unroll"} <= per_kernel["rms_norm"]
    assert {"stage_row", "hoist_reciprocal", "split_accumulator"} <= per_kernel["softmax"]
    assert {"coarsen", "persistent", "launch_bounds", "expose_block"} <= per_kernel["spmv_csr"]
    assert {"streaming", "expose_block"} <= per_kernel["stencil_2d"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is needed to emulate kernels")
@pytest.mark.parametrize("name", NAMES)
def test_every_mutation_computes_the_same(name: str, tmp_path: Path) -> None:
    variant = textbook_variant(name)
    assert_right([("parent", variant), *children(variant)], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is needed to emulate kernels")
@pytest.mark.parametrize("name", NAMES)
def test_mutations_of_mutations_compute_the_same(name: str, tmp_path: Path) -> None:
    first = children(textbook_variant(name))
    second = [(f"{a}+{b}", g) for a, c in first for b, g in children(c)]
    assert_right(random.Random(5).sample(second, min(12, len(second))), tmp_path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is needed to emulate kernels")
def test_the_emulator_notices_a_broken_tail(tmp_path: Path) -> None:
    text = textbook.CUDA["stencil_2d"].replace("t >= nx * ny", "t > nx * ny")
    with pytest.raises(AssertionError, match="wrote behind dst"):
        assert_right([("broken", parse_variant(text, "cuda"))], tmp_path)


@pytest.mark.nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_mutation_compiles(name: str) -> None:
    pytest.importorskip("cuda.core")
    from kernelsearch.targets.cuda import CudaTarget

    target = CudaTarget(arch="sm_90a")
    pick = random.Random(3)
    naive = [load_variant(p) for p in template_paths(name, "cuda")[:1]]
    for parent in (textbook_variant(name), *naive):
        for rule, child in children(parent):
            for dtype in child.dtypes:
                params = pick.choice(child.valid_params(textbook.GPU.facts, dtype))
                binary = target.compile(child.compile_job(params, dtype, "sm_90a"))
                assert binary.image, rule


@pytest.mark.parametrize("name", NAMES)
def test_rules_never_offer_what_does_not_parse(name: str) -> None:
    for path in template_paths(name, "cuda"):
        children(load_variant(path))


def test_vector_loop_keeps_a_scalar_path_for_unaligned_rows() -> None:
    source = one(textbook_variant("rms_norm"), "vectorise").source
    assert "% sizeof(Packed<float, VEC>) == 0" in source
    assert source.count("packed + (tid)") == 1


def test_block_size_is_named_once() -> None:
    child = one(textbook_variant("spmv_csr"), "expose_block")
    assert child.tunables["kBlock"] == (32, 64, 128, 256, 512, 1024)
    assert "constexpr" not in child.source
    assert str(child.steps[0].grid[0].text) == "ceildiv(rows, kBlock)"


def test_existing_unroll_factor_becomes_tunable() -> None:
    child = one(textbook_variant("matrix_mul"), "unroll")
    assert "#pragma unroll UNROLL" in child.source
    assert 4 in child.tunables["UNROLL"]


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("coarsen", "if (row < rows) {", "if (row >= gridDim.x * kBlock) return; {"),
        ("split_accumulator", "dot += values[k]", "if (dot > 3.0f) break; dot += values[k]"),
        ("split_accumulator", "dot += values[k]", "dot = -dot; dot += values[k]"),
        ("expose_block", "y[row] = dot;", "__syncwarp(); y[row] = dot * 256;"),
        ("read_only", "const float* x,", "float* x,"),
    ],
)
def test_preconditions_hold_rules_back(rule: str, old: str, new: str) -> None:
    text = textbook.CUDA["spmv_csr"]
    assert old in text
    found = [c for n, c in children(parse_variant(text.replace(old, new), "cuda")) if n == rule]
    if rule == "read_only":
        assert all("__ldg(&x" not in c.source for c in found)
    elif rule == "expose_block":
        # The named constant goes; a plain 256 that means something else must stay.
        assert all("dot * 256" in c.source for c in found)
    else:
        assert found == []


def test_shared_memory_and_early_returns_do_not_mix() -> None:
    text = textbook.CUDA["rms_norm"].replace(
        "int tid = threadIdx.x;", "int tid = threadIdx.x; if (blockIdx.x > 7) return;"
    )
    assert not {"coarsen", "persistent"} & applied(parse_variant(text, "cuda"))


def test_fast_functions_only_where_the_policy_allows_them() -> None:
    assert "fast_intrinsics" not in applied(textbook_variant("softmax"))
