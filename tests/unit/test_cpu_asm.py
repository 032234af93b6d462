"""Facts from the machine code that LLVM makes of Numba source."""

from __future__ import annotations

import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.operators_io import load_operator
from kernelsearch.resources import template_paths
from kernelsearch.targets.cpu_asm import assembly_facts
from kernelsearch.targets.cpu_compile import compile_binary
from kernelsearch.targets.cpu_device import cpu_device
from kernelsearch.variant import load_variant

LISTING = """
kernel:
	xorl	%eax, %eax
.LBB0_1:
	vmovups	(%rdi,%rax,4), %ymm0
	vfmadd231ps	(%rsi,%rax,4), %ymm0, %ymm1
	addq	$8, %rax
	cmpq	%rdx, %rax
	jb	.LBB0_1
	vdivss	%xmm2, %xmm1, %xmm1
	retq
NRT_incref:
	divq	%rcx
	retq
"""


def test_the_loop_decides_the_shares() -> None:
    facts = assembly_facts(LISTING)
    assert (facts["loops"], facts["depth"], facts["instructions"]) == (1, 1, 8)
    assert facts["vector_bytes"] > 25
    assert facts["w_fma"] == pytest.approx(16 / 83, abs=1e-4)
    assert facts["w_load"] == pytest.approx(32 / 83, abs=1e-4)
    assert facts["w_divide"] == pytest.approx(1 / 83, abs=1e-4)
    assert facts["w_packed"] > 10 * facts["w_scalar"]


def test_what_is_called_in_a_loop_counts_as_lying_in_it() -> None:
    caller = """
outer:
	movabsq	$inner, %rbx
.LBB1_1:
	callq	*%rbx
	decq	%rcx
	jne	.LBB1_1
	retq
inner:
	vaddsd	%xmm0, %xmm1, %xmm1
	retq
"""
    facts = assembly_facts(caller)
    assert facts["depth"] == 1
    assert facts["w_scalar"] == pytest.approx(16 / 82, abs=1e-4)
    assert facts["fp64"] == 1


def test_other_machines_give_nothing() -> None:
    assert assembly_facts("kernel:\n\tfmla v0.4s, v1.4s, v2.4s\n\tret\n") == {}


@given(st.text(alphabet="abcjmpr:.L_0%(),$\n\tx", max_size=400))
def test_any_text_gives_finite_numbers(text: str) -> None:
    assert all(0 <= v < 1e9 for v in assembly_facts("%r" + text).values())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
def test_a_compiled_template_says_what_it_is_made_of() -> None:
    operator, device = load_operator("spmv_csr"), cpu_device()
    path = next(p for p in template_paths("spmv_csr", "cpu") if p.stem == "naive")
    variant = load_variant(path)
    params = variant.default_params(device.facts, "float64")
    job = variant.compile_job(params, "float64", device.arch, operator)
    facts = compile_binary(job).facts[0].code
    assert facts["loops"] >= 1
    assert facts["fp64"] > 0.9
    assert facts["w_load"] > 0.05
