"""Compile to an image, load it, and tell equal code from different code."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from kernelsearch.errors import CompileError, RejectedError, SpecError, VariantError
from kernelsearch.targets import cpu_compile
from kernelsearch.targets.cpu import CpuTarget
from kernelsearch.targets.cpu_compile import pack_images, unpack_images
from kernelsearch.targets.cpu_elf import code_digest
from tests.support.cpu_cases import PARALLEL, SCALE, SERIAL, Data, compiled, opened, variant

TARGET = CpuTarget()


def test_target_and_binary_can_be_pickled() -> None:
    binary = compiled(TARGET, variant())
    assert pickle.loads(pickle.dumps(TARGET)) == TARGET
    again = pickle.loads(pickle.dumps(binary))
    data = Data(100)
    opened(TARGET, again).run(data.request(again, variant()))
    assert data.right()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parallel_kernels_run_after_loading(dtype: str) -> None:
    it = variant(PARALLEL, "[numba]\nparallel = true")
    binary = compiled(TARGET, it, dtype)
    data = Data(5000, dtype)
    opened(TARGET, binary).run(data.request(binary, it))
    assert data.right()


def test_equal_code_has_one_hash_and_names_do_not_matter() -> None:
    first = compiled(TARGET, variant())
    renamed = compiled(TARGET, variant(SERIAL.replace("i]", "k]").replace("for i", "for k")))
    other = compiled(TARGET, variant(SERIAL.replace("* factor", "+ factor")))
    called = compiled(TARGET, variant(SERIAL.replace("x[i] *", "np.exp(x[i]) *")))
    similar = compiled(TARGET, variant(SERIAL.replace("x[i] *", "np.sin(x[i]) *")))
    assert first.key != renamed.key
    assert first.code_hash == renamed.code_hash
    assert len({first.code_hash, other.code_hash, called.code_hash, similar.code_hash}) == 4


def test_code_of_other_formats_is_hashed_whole() -> None:
    assert code_digest(b"MZ..") != code_digest(b"MZ.,")


def test_an_image_of_another_toolchain_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = compiled(TARGET, variant())
    images = unpack_images(binary.image)
    assert images is not None
    assert unpack_images(b"something else") is None
    monkeypatch.setattr(cpu_compile, "toolchain", lambda: "another")
    assert unpack_images(binary.image) is None
    assert unpack_images(pack_images(images)) == images
    data = Data(10)
    opened(TARGET, binary).run(data.request(binary, variant()))
    assert data.right()


def test_two_kernels_of_one_name_stay_apart() -> None:
    twice = variant(SERIAL.replace("* factor", "* factor * ELEM(2)"))
    one, two = compiled(TARGET, variant()), compiled(TARGET, twice)
    executable = opened(TARGET, one, two)
    data = Data(10)
    executable.run(data.request(two, twice))
    assert np.allclose(data.y, data.x * 6)
    executable.run(data.request(one, variant()))
    assert data.right()
    executable.unload(two.key)
    with pytest.raises(SpecError, match="is not loaded"):
        executable.run(data.request(two, twice))


def test_tunables_and_constants_reach_the_source() -> None:
    it = variant(
        "BASE = ELEM(2)\n\n\ndef scale(y, x, factor):\n    for i in range(x.shape[0]):\n"
        '        y[i] = x[i] * (BASE + ADD) if KIND == "sum" else factor\n',
        '[tunables]\nADD = [1]\nKIND = ["sum", "other"]',
    )
    binary = compiled(TARGET, it, ADD=1, KIND="sum")  # type: ignore[arg-type]
    data = Data(10)
    opened(TARGET, binary).run(data.request(binary, it))
    assert data.right()


@pytest.mark.parametrize(
    ("body", "reason", "line"),
    [
        ("def scale(y, x, factor):\n    x[0] = factor\n", "readonly", 14),
        ("def scale(y, x, factor):\n    y[0] = x[0].shape[0]\n", "shape", 14),
        ("def scale(y, x, factor):\n    y[0] = late\n    late = 1\n", "late", None),
        ("def scale(y, x):\n    y[0] = x[0]\n", "takes 2 arguments, but its launch step", 13),
    ],
)
def test_compile_errors_point_at_the_line(body: str, reason: str, line: int | None) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(TARGET, variant(body))
    error = caught.value
    assert reason in str(error) + str(error.evidence["log"])
    assert str(error).startswith("scale.py")
    if line is not None:
        assert error.evidence["line"] == line
    assert "site-packages" not in str(error.evidence["log"])


def test_forbidden_source_is_rejected_before_compiling() -> None:
    with pytest.raises(RejectedError, match=r"scale\.py:14:5"):
        compiled(TARGET, variant("def scale(y, x, factor):\n    exec(y)\n"))


def test_constants_that_fail_or_do_not_fit() -> None:
    with pytest.raises(CompileError, match="by zero"):
        compiled(TARGET, variant("A = 1 // 0\n\n\n" + SERIAL))
    big = "A = 4294967296 * 4294967296\n\n\n"
    with pytest.raises(RejectedError, match="does not fit 64 bits"):
        compiled(TARGET, variant(big + SERIAL))


def test_jobs_without_types_or_with_unsupported_ones() -> None:
    job = variant().compile_job({}, "float32", TARGET.device.arch)
    with pytest.raises(CompileError, match="argument types"):
        TARGET.compile(job)
    options = dict(variant().compile_job({}, "float32", "", SCALE).options)
    options["dtype"] = "bfloat16"
    options["args"] = (("scale", ("out:bfloat16:1", "in:bfloat16:1", "f32")),)
    with pytest.raises(CompileError, match="bfloat16 is not supported"):
        TARGET.compile(dataclasses.replace(job, options=tuple(options.items())))


def test_one_kernel_with_two_argument_lists() -> None:
    it = variant(extra='[[launch]]\nkernel = "scale"\nargs = ["x", "y", "factor:f64"]')
    with pytest.raises(VariantError, match="arguments of different types"):
        it.compile_job({}, "float32", "", SCALE)
