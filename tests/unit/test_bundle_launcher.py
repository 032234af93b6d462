"""The C++ launcher queues what the Python launch plan says, on a driver that only notes it."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.errors import ArgumentError, ExpressionError, RejectedError
from kernelsearch.export.cpp_expressions import CppExpressions
from kernelsearch.export.cuda_bundle import cuda_files
from kernelsearch.export.kernel import ExportedKernel, Measured, architecture
from kernelsearch.expressions import Expression
from kernelsearch.operator import Operator
from kernelsearch.operators_io import load_operator
from kernelsearch.records import DTYPE_BYTES, FillStep, LaunchPlan, ScalarArg
from kernelsearch.resources import include_folder, operator_paths, template_paths
from kernelsearch.targets.cuda_device import architecture_device
from kernelsearch.variant import Variant, load_variant, parse_variant
from tests.support import bundle_build as support

FACTS = architecture_device("sm_90a").facts
STREAM_BASE = 0x700000000000


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.fake_driver(tmp_path_factory.mktemp("driver"))


def hexed(pointer: int) -> str:
    return pointer.to_bytes(8, "little").hex()


def expected(
    kernel: ExportedKernel, plan: LaunchPlan, operator: Operator, sizes: dict[str, int],
    pointers: dict[str, int],
) -> list[str]:  # fmt: skip
    """Return the lines the fake driver writes for a plan (loading and attributes left out)."""
    places, total = dict(pointers), 0
    nbytes = {
        t.name: math.prod(t.concrete_shape(sizes))
        * DTYPE_BYTES[operator.tensor_dtype(t, kernel.dtype)]
        for t in operator.tensors
    }
    for space in plan.workspaces:
        nbytes[space.name] = math.prod(space.shape) * DTYPE_BYTES[space.dtype]
        places[space.name] = STREAM_BASE + total
        total += -(-nbytes[space.name] // 256) * 256
    lines = [f"allocate {total}"] if total else []
    maps = {}
    for spec in plan.tensormaps:
        maps[spec.name] = places[spec.tensor]
        tensor = next(t for t in operator.tensors if t.name == spec.tensor)
        shape = tensor.concrete_shape(sizes)
        element = DTYPE_BYTES[operator.tensor_dtype(tensor, kernel.dtype)]
        strides = [element * math.prod(shape[i:]) for i in range(len(shape) - 1, 0, -1)]
        numbers = [*reversed(shape), *strides]
        numbers += [n for b in reversed(spec.box) for n in (b, 1)]
        numbers += [0, ("none", "32B", "64B", "128B").index(spec.swizzle),
                    ("none", "64B", "128B", "256B").index(spec.l2_promotion), 0]  # fmt: skip
        kind = {"float32": 7, "bfloat16": 9}[operator.tensor_dtype(tensor, kernel.dtype)]
        text = " ".join(map(str, [kind, len(shape), *numbers]))
        lines.append(f"map {places[spec.tensor]:x} {text}")
    for step in plan.steps:
        if isinstance(step, FillStep):
            if nbytes[step.buffer]:
                lines.append(f"fill {places[step.buffer]:x} {step.value} {nbytes[step.buffer]}")
            continue
        cluster = step.cluster or (0, 0, 0)
        values = [
            support.packed(a.ctype, a.value) if isinstance(a, ScalarArg)
            else hexed(maps[a] if a in maps else places[a])
            for a in step.args
        ]  # fmt: skip
        three = lambda t: " ".join(map(str, t))  # noqa: E731
        lines.append(
            f"launch {kernel.symbols[step.kernel]} grid {three(step.grid)} block "
            f"{three(step.block)} shared {step.shared} cluster {three(cluster)} cooperative "
            f"{int(step.cooperative)} args {' '.join(values)}"
        )
    return [*lines, "free"] if total else lines


def every_kernel(operator: Operator) -> list[ExportedKernel]:
    """Return each template with several params, chosen by an alias of the device: its own id."""
    kernels = []
    for path in template_paths(operator.name, "cuda"):
        variant = load_variant(path, include_folder())
        for dtype in variant.dtypes:
            valid = variant.valid_params(FACTS, dtype)
            for params in (valid[0], valid[len(valid) // 2], valid[-1]):
                kernel = support.stand_in(variant, params, dtype)
                if kernel.id not in {k.id for k in kernels}:
                    zeros = tuple(0 for _ in operator.symbols)
                    record = Measured(kernel.id, "sm_90a", zeros, 1.0, 1.0, 1.0)
                    kernels.append(support.stand_in(variant, params, dtype, measured=[record]))
    return kernels


@pytest.mark.parametrize("name", sorted(operator_paths()))
def test_every_template_is_launched_as_planned(name: str, driver: Path, tmp_path: Path) -> None:
    operator = load_operator(name)
    kernels = every_kernel(operator)
    bundle = support.write(tmp_path / "all", operator, kernels)
    support.library(bundle, name)
    scalars = operator.scalar_values()
    sets = [w for n, s in operator.workloads.items() if "@" not in n for w in s]
    sizes = list({tuple(w.sizes.items()): dict(w.sizes) for w in sets}.values())
    sizes.append(dict.fromkeys(operator.symbols, 4096))
    sizes = [s for s in sizes if all(Expression.parse(c).truth(s) for c in operator.checks)]
    calls, wanted = [], []
    for kernel in kernels:
        for case, off in ((c, o) for c in sizes for o in (0, 8)):
            pointers = {t.name: (0x10000000 << i) + off for i, t in enumerate(operator.tensors)}
            align = {n: min(256, p & -p) for n, p in pointers.items()}
            missed = kernel.variant.applies(kernel.params, case, FACTS, kernel.dtype, align)
            if missed is not None:
                continue
            plan = kernel.variant.plan(kernel.params, case, scalars, FACTS, kernel.dtype)
            wanted.append(expected(kernel, plan, operator, case, pointers))
            calls.append({
                "dtype": kernel.dtype, "environment": {"KERNELSEARCH_DEVICE_ALIAS": kernel.id},
                "arguments": support.arguments(operator, kernel.dtype, case, pointers, scalars),
            })  # fmt: skip
    answers, logs, said = support.call(bundle, name, driver, calls)
    assert len(calls) >= 3 * len(kernels)
    assert said == ""
    for number, (code, message) in enumerate(answers):
        assert code == 0, (calls[number], message)
        got = [line for line in logs[number] if not line.startswith(("load", "set"))]
        # Memory is allocated before a plan is bound, maps are encoded while it is.
        assert got == wanted[number], calls[number]


SOURCE = """/* kernelsearch
format = 1
operator = "rms_norm"
doc = "for tests"
[tunables]
T = [32, 64]
WORD = ["row", "column"]
[constraints]
fits = "T * 1024 <= max_shared_per_block"
[domain]
small = "rows <= 1000 and cols % (T // 32) == 0"
aligned = "align_x >= 16"
[workspace]
part = {dtype = "float32", shape = ["rows", "3"]}
[[launch]]
fill = "part"
value = 7
[[launch]]
kernel = "first"
when = "WORD == 'row' and rows > 2"
grid = ["rows"]
block = ["T"]
shared = "T * 1024"
cooperative = true
args = ["part", "x", "rows * cols:i32", "eps * 2:f64"]
*/
__global__ void first(float* part, const float* x, int n, double e) {}
"""


def variant(text: str = SOURCE) -> Variant:
    return parse_variant(text, "cuda", "first.cu")


OPERATOR = load_operator("rms_norm")
PLACES = {"y": 0x1000, "x": 0x2000, "weight": 0x3000, "bias": 0x4000}


def one(rows: int = 4, cols: int = 8, dtype: str = "float32", **places: int) -> dict[str, object]:
    values = support.arguments(
        OPERATOR, dtype, {"rows": rows, "cols": cols}, {**PLACES, **places}, {"eps": 0.5}
    )
    return {"dtype": dtype, "arguments": values}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels: a wide one measured on a Big GPU, and one for all sizes below 1000 rows."""
    records = [Measured("Big GPU", "sm_90a", (512, 512), 9.0, 9.0, 9.0),
               Measured("Other GPU", "sm_100a", (4, 8), 9.0, 9.0, 9.0)]  # fmt: skip
    near = Measured("Big GPU", "sm_90a", (4, 8), 1.0, 1.0, 1.0)
    text = SOURCE.replace('"for tests"', '"for wide rows"')
    kernels = [
        support.stand_in(variant(), {"T": 32, "WORD": "row"}, "float32",
                         ["sm_80", "sm_90"], [near]),
        support.stand_in(variant(text), {"T": 64, "WORD": "row"}, "float32",
                         ["sm_80", "sm_90a", "sm_100"], records),
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("small")
    bundle = support.write(folder / "small", OPERATOR, kernels)
    support.library(bundle, "rms_norm")
    return bundle


def test_fills_when_scalars_and_limits(small: Path, driver: Path) -> None:
    big = {"FAKE_CUDA_NAME": "Big GPU"}
    calls = [one(), one(rows=2), one(rows=0, y=0), one(x=0), one(x=0x2004), one(x=0x2001),
             one(rows=-1), one(rows=1000, cols=1 << 40), one(rows=1001),
             {**one(), "workspace": (0x5000, 64)}, {**one(), "workspace": (0x5000, 256)},
             one(rows=264), one(rows=265)]  # fmt: skip
    answers, logs, _ = support.call(small, "rms_norm", driver, calls, big)
    codes = [code for code, _ in answers]
    assert codes == [0, 0, 0, 3, 4, 3, 3, 3, 4, 6, 0, 0, 5]
    assert logs[0][0] == "load cubin"
    assert "allocate 256" in logs[0]
    assert f"fill {STREAM_BASE:x} 7 48" in logs[0]
    assert logs[0][-2].startswith("launch _Z0_first_float32 grid 4 1 1 block 32 1 1 shared 32768")
    values = [hexed(STREAM_BASE), hexed(0x2000), support.packed("i32", 32)]
    values.append(support.packed("f64", 1.0))
    assert logs[0][-2].endswith(f"cooperative 1 args {' '.join(values)}")
    assert [line.split()[0] for line in logs[1]] == ["allocate", "fill", "free"]
    assert logs[2] == []
    for number in (3, 4, 5, 6, 7, 8, 9):
        assert not [line for line in logs[number] if line.startswith("launch")], number
    assert f"fill {0x5000:x} 7 48" in logs[10]
    assert "x is misaligned" in answers[5][1]
    assert "rows is negative" in answers[6][1]
    assert not [line for line in logs[12] if line.startswith("launch")]


def entry_of(log: list[str]) -> int:
    """Return the block's threads: which of the two kernels was launched."""
    launches = [line for line in log if line.startswith("launch")]
    return int(launches[0].split(" block ")[1].split()[0])


def test_the_nearest_measured_kernel_of_the_most_alike_device_is_used(
    small: Path, driver: Path
) -> None:
    calls = [one(4, 8), one(6, 8), one(200, 512)]
    for device, arch, threads, words in (
        ("Big GPU", "90", [32, 32, 64], ""),
        ("Big PCIe GPU", "90", [32, 32, 64], "another device of this compute capability"),
        ("New GPU", "103", [64, 64, 64], "another device of this family"),
        ("Old GPU", "86", [32, 32, 32], "not measured on any device like this one"),
    ):
        environment = {"FAKE_CUDA_NAME": device, "FAKE_CUDA_ARCH": arch}
        answers, logs, said = support.call(small, "rms_norm", driver, calls, environment)
        assert [code for code, _ in answers] == [0, 0, 0], answers
        assert [entry_of(log) for log in logs] == threads, device
        assert words in said
        assert said.count("\n") <= 1, "it is said once"
        if words:
            answers, logs, _ = support.call(
                small, "rms_norm", driver, calls[:1], {**environment, "KERNELSEARCH_STRICT": "1"}
            )
            assert answers[0][0] == 8
            assert logs == [[]]
    alias = {"FAKE_CUDA_NAME": "Renamed", "KERNELSEARCH_DEVICE_ALIAS": "Big GPU"}
    answers, _, said = support.call(
        small, "rms_norm", driver, calls[:1], {**alias, "KERNELSEARCH_STRICT": "1"}
    )
    assert answers[0][0] == 0
    assert said == ""


def test_a_device_that_a_kernel_does_not_fit_gets_another_or_a_reason(
    small: Path, driver: Path
) -> None:
    roomy = {"FAKE_CUDA_NAME": "Big GPU", "FAKE_CUDA_SHARED": str(40 << 10)}
    _, logs, _ = support.call(small, "rms_norm", driver, [one(200, 512)], roomy)
    assert entry_of(logs[0]) == 32
    for environment, code in (
        ({"FAKE_CUDA_SHARED": "1024"}, 4), ({"FAKE_CUDA_ARCH": "75"}, 4),
        ({"FAKE_CUDA_NO_CONTEXT": "1"}, 2), ({"FAKE_CUDA_INIT": "100"}, 1),
    ):  # fmt: skip
        answers, logs, _ = support.call(small, "rms_norm", driver, [one()], environment)
        assert answers[0][0] == code, (environment, answers)
        assert answers[0][1]
        assert logs == [[]]


def test_equal_input_gives_equal_bytes() -> None:
    kernels = [support.stand_in(variant(), {"T": 32, "WORD": "row"}, "float32")]
    again = [support.stand_in(variant(), {"WORD": "row", "T": 32}, "float32")]
    assert cuda_files(OPERATOR, kernels, {}) == cuda_files(OPERATOR, again, {})
    with pytest.raises(ArgumentError, match="twice"):
        cuda_files(OPERATOR, kernels + again, {})
    with pytest.raises(ArgumentError, match="at least one"):
        cuda_files(OPERATOR, [], {})


@pytest.mark.parametrize("text", ["90", "sm_9", "sm_90x", "", "compute_80", "sm_90a\n"])
def test_architectures_are_checked(text: str) -> None:
    with pytest.raises(ArgumentError, match="sm_90a"):
        architecture(text)


# --- expressions --------------------------------------------------------------------------------

_NUMBERS = st.sampled_from(["0", "1", "3", "7", "64", "2147483647", "a", "b", "c", "2.5", "P"])


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner)
    compared = st.tuples(inner, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), inner)
    logic = st.tuples(inner, st.sampled_from(["and", "or"]), inner)
    return st.one_of(
        st.one_of(pairs, compared, logic).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"ceildiv({t[0]}, {t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"min({t[0]}, {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        inner.map(lambda t: f"(-{t})"), inner.map(lambda t: f"(not {t})"),
        inner.map(lambda t: f"abs({t})"),
    )  # fmt: skip


EXPRESSIONS = st.recursive(_NUMBERS, _combine, max_leaves=8)
VALUES = ({"a": 0, "b": 5, "c": -3}, {"a": 4096, "b": 1 << 40, "c": 7}, {"a": 1, "b": 1, "c": 0})


def test_expressions_mean_the_same_in_cpp(tmp_path: Path) -> None:
    """One program evaluates many random expressions; Python says what must come out."""
    support.need("g++")
    texts: list[str] = []

    @given(EXPRESSIONS)
    def gather(text: str) -> None:
        texts.append(text)

    gather()
    lines = ['#include "arithmetic.hpp"', "#include <cstdio>",
             "using kernelsearch::Arithmetic; using kernelsearch::integer;"]  # fmt: skip
    said = []
    for text in dict.fromkeys(texts):
        expression = Expression.parse(text)
        cpp = CppExpressions({"P": 6}, {n: n for n in "abc"})
        try:
            body, kind = cpp.number(expression)
        except ExpressionError:
            continue
        number = len(said)
        said.append((expression, kind))
        lines.append(
            f"static void f{number}(long long a, long long b, long long c) {{ (void)a; (void)b; "
            f"(void)c; Arithmetic math; const double v = static_cast<double>({body}); "
            'if (math.failed()) std::puts("none"); else std::printf("%.17g\\n", v); }'
        )
    lines.append("int main() {")
    for number in range(len(said)):
        for v in VALUES:
            lines.append(f"  f{number}({v['a']}LL, {v['b']}LL, {v['c']}LL);")
    (tmp_path / "all.cpp").write_text("\n".join([*lines, "}"]))
    include = Path(support.SUPPORT).parents[1] / "kernelsearch/export/include/kernelsearch"
    subprocess.run(
        ["g++", "-std=c++17", "-O0", "-w", f"-I{include}", str(tmp_path / "all.cpp"), "-o",
         str(tmp_path / "all")], check=True,
    )  # fmt: skip
    output = subprocess.run([str(tmp_path / "all")], capture_output=True, text=True, check=True)
    got = output.stdout.split()
    assert len(got) == len(said) * len(VALUES)
    assert len(said) > 20
    for number, (expression, _) in enumerate(said):
        for index, names in enumerate(VALUES):
            answer = got[number * len(VALUES) + index]
            try:
                value = float(expression.evaluate({**names, "P": 6}))
            except ExpressionError:
                assert answer == "none", (expression.text, names)
                continue
            assert float(answer) == pytest.approx(value, rel=1e-12), (expression.text, names)


def test_what_cpp_cannot_say_is_refused() -> None:
    cpp = CppExpressions({"W": "row"}, {"n": "n"})
    for text in ("W", "2 ** n", "n ** -1", "unknown + 1", "2 ** 70 + n", "ilog2(n / 2)"):
        with pytest.raises(ExpressionError):
            cpp.integer(Expression.parse(text))
    assert cpp.truth(Expression.parse("W == 'row' or n > 2")) == "true"
    with pytest.raises(RejectedError):
        variant().check_params({"T": 1, "WORD": "row"})
