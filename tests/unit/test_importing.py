"""CUDA files as people write them: imported with the right contract, or refused with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kernelsearch.cli.app import app
from kernelsearch.cli.entry import main as _main  # noqa: F401 - registers the commands
from kernelsearch.errors import KernelSearchError
from kernelsearch.importing.problem import CannotImportError
from kernelsearch.importing.run import ImportOptions, import_cuda
from kernelsearch.importing.symbols import FloorDivide, from_plan, plan_text, symbol
from kernelsearch.operator import Operator, Tensor
from kernelsearch.operators_io import load_operator
from kernelsearch.original import Original, doubled
from kernelsearch.propose.rules import RulesProposer
from kernelsearch.protocols import ProposalRequest
from kernelsearch.records import VariantRecord
from kernelsearch.targets.cuda_compile import compile_cuda
from kernelsearch.targets.cuda_device import architecture_device
from kernelsearch.variant import parse_variant
from tests.support.cuda_emulator import Run, emulate

CORPUS = Path(__file__).parent.parent / "data" / "cuda_import"
EXPECTED = json.loads((CORPUS / "expected.json").read_text())
IMPORTED = sorted(n for n, e in EXPECTED.items() if "refused" not in e)
REFUSED = sorted(n for n, e in EXPECTED.items() if "refused" in e)


def test_the_corpus_is_whole():
    assert sorted(p.name for p in CORPUS.glob("*.cu")) == sorted(EXPECTED)
    assert len(EXPECTED) >= 30


@pytest.mark.parametrize("name", IMPORTED)
def test_a_file_is_imported_with_its_contract(name, tmp_path):
    imported, written = import_cuda(CORPUS / name)
    want = EXPECTED[name]
    tensors = [
        f"{t.role} {t.name}[{', '.join(t.shape)}] {t.dtype}"
        + (f" {t.values}<{t.limit}" if t.values else "")
        for t in imported.tensors
    ]
    assert tensors == want["tensors"]
    assert [n for n, _, _ in imported.scalars] == want["scalars"]
    assert [f"{n}[{e}] {d}" for n, (d, e) in imported.workspaces.items()] == want["scratch"]
    assert list(imported.tunables) == want["tunables"]
    assert (imported.terms, imported.checks) == (want["terms"], want["checks"])
    launches = [
        (s.get("kernel") or f"fill {s['fill']}")
        + (f"<<<{', '.join(s['grid'])}; {', '.join(s['block'])}>>>" if "grid" in s else "")
        + (f" when {s['when']}" if "when" in s else "")
        for s in imported.steps
    ]
    assert launches == want["launches"]
    # The files are a working operator whose smallest workload has inputs and a plan.
    operator, variant = written.save(tmp_path)
    loaded = load_operator(operator)
    parsed = parse_variant(variant.read_text(), "cuda", str(variant))
    parsed.check_against(loaded)
    dtype = imported.element
    for workloads in loaded.workloads.values():
        for workload in workloads:
            loaded.check_workload(workload)
    workload = loaded.workloads["smoke"][0]
    drawn = loaded.generate(workload.sizes, "default", np.random.default_rng(0), dtype)
    assert {n: a.shape for n, a in drawn.items()} == {
        t.name: t.concrete_shape(workload.sizes) for t in loaded.inputs
    }
    params = {n: c[0] for n, c in parsed.tunables.items()}
    facts = architecture_device("sm_90a").facts
    assert parsed.plan(params, workload.sizes, loaded.scalar_values(), facts, dtype).steps


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_with_place_and_reason(name):
    with pytest.raises(CannotImportError) as caught:
        import_cuda(CORPUS / name)
    assert EXPECTED[name]["refused"] in str(caught.value)


@pytest.mark.parametrize("name", IMPORTED)
def test_the_float64_edition_compiles(name):
    _, written = import_cuda(CORPUS / name)
    text = doubled(written.variant, "float32")
    if text is None or '"float64"' not in text:
        assert "bf16" in name or "float32" not in written.variant
        return
    variant = parse_variant(text, "cuda", "double.cu")
    params = {n: c[0] for n, c in variant.tunables.items()}
    job = variant.compile_job(params, "float64", "sm_90a")
    assert {f.name for f in compile_cuda(job).facts} == set(job.kernels)


# --- what the plans compute: the kernels run on the host ------------------------------------------


class HostMachine:
    """Runs originals in the emulator, where the tests' kernels allow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def run(self, variant, arguments, sizes, arrays, scalars, dtype):
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        operator = _Bare(arguments, scalars, dtype)
        params = {n: c[0] for n, c in variant.tunables.items()}
        facts = architecture_device("sm_90a").facts
        (outputs,) = emulate(operator, [Run(variant, params, sizes, arrays)], facts, folder)
        return outputs


class _Bare:
    def __init__(self, arguments, scalars, dtype):
        self.dtype = dtype
        self.tensors = [a for a in arguments if isinstance(a, Tensor)]
        self.outputs = [t for t in self.tensors if t.role != "in"]
        self._scalars = scalars

    def scalar_values(self):
        return dict(self._scalars)

    def tensor_dtype(self, tensor, dtype):
        del dtype  # the emulator knows float32 only; ours says what it was made for
        return self.dtype if tensor.dtype == "elem" else tensor.dtype


def _matmul(a, s):
    return {"C": a["A"] @ a["B"]}


def _spmv(a, s):
    rows = len(a["ptr"]) - 1
    product = a["val"] * a["x"][a["idx"]]
    return {"y": np.array([product[a["ptr"][r] : a["ptr"][r + 1]].sum() for r in range(rows)])}


def _stencil(a, s):
    x = a["in_"]
    out = x.copy()
    inner = (slice(1, -1),) * 3
    near = sum(np.roll(x, d, axis)[inner] for axis in range(3) for d in (1, -1))
    out[inner] = s["c0"] * x[inner] + s["c1"] * near
    return {"out": out}


def _convolution(a, s):
    image = a["input"].reshape(35 + 4, 67 + 4)
    return {"output": sum(
        image[j : j + 35, i : i + 67] * a["filter"][5 * j + i] for j in range(5) for i in range(5)
    )}  # fmt: skip


def _fir(a, s):
    x, h = a["in_"], a["h"]
    at = np.clip(np.arange(len(x))[:, None] + np.arange(-4, 5)[None], 0, len(x) - 1)
    return {"out": (x[at] * h).sum(axis=1)}


NUMERIC = {
    "tiled_matmul.cu": ({"M": 19, "K": 35, "N": 18}, _matmul),
    "csr_spmv.cu": ({"rows": 23, "nnz": 90, "cols": 17}, _spmv),
    "stencil_3d.cu": ({"nz": 5, "ny": 9, "nx": 33}, _stencil),
    "conv2d_halo.cu": ({"height": 35, "width": 67}, _convolution),
    "constant_filter.cu": ({"n": 300}, _fir),
    "kernel_only_2d.cu": ({"height": 21, "width": 34},
                          lambda a, s: {"out": a["in_"].T.reshape(34, 21)}),
    "struct_by_value.cu": ({"n": 300}, lambda a, s: {"y": s["alpha"] * a["x"]}),
    "windows_relu.cu": ({"n": 300}, lambda a, s: {"x": np.maximum(a["x"], 0)}),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NUMERIC))
def test_an_original_is_its_own_reference_in_float64(name, tmp_path, monkeypatch):
    sizes, formula = NUMERIC[name]
    _, written = import_cuda(CORPUS / name)
    operator_file, _ = written.save(tmp_path)
    operator = load_operator(operator_file)
    host = HostMachine(tmp_path)
    monkeypatch.setattr("kernelsearch.original.machine", lambda: host)
    dtype = operator.dtypes["cuda"][0]
    arrays = operator.generate(sizes, "default", np.random.default_rng(1), dtype)
    scalars = operator.scalar_values()
    outputs = operator.reference_for(sizes)(arrays, scalars, None)
    wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in arrays.items()}
    for tensor, want in formula(wide, scalars).items():
        got = outputs[tensor]
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    # Asked for some rows of the same arrays, nothing runs again.
    runs = host.count
    rows = operator.reference_for(sizes)(arrays, scalars, np.array([0]))
    assert host.count == runs
    assert all(len(value) == 1 for value in rows.values())
    scale = operator.scale_for(sizes)(arrays, scalars, None)
    assert all((scale[n] >= np.abs(v) * (1 - 1e-6)).all() for n, v in outputs.items())


def test_an_original_that_leaves_elements_unwritten_is_reported(tmp_path, monkeypatch):
    source = tmp_path / "odd.cu"
    source.write_text(
        "__global__ void odd(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n && i % 2 == 0) y[i] = x[i];\n}\n"
        "void run(float* y, const float* x, int n) { odd<<<(n + 31) / 32, 32>>>(y, x, n); }\n"
    )
    _, written = import_cuda(source)
    operator = load_operator(written.save(tmp_path / "o")[0])

    class Half:
        def run(self, variant, arguments, sizes, arrays, scalars, dtype):
            y = np.frombuffer(b"\xff" * 8 * sizes["n"], dtype=np.float64).copy()
            y[::2] = arrays["x"][::2]
            return {"y": y}

    monkeypatch.setattr("kernelsearch.original.machine", Half)
    arrays = {"x": np.ones(10, np.float32)}
    with pytest.raises(KernelSearchError, match=r"5 of 10 elements of y unwritten.*--inout y"):
        operator.reference_for({"n": 10})(arrays, {}, None)


# --- what the user says ---------------------------------------------------------------------------


def test_flags_say_what_the_source_does_not(tmp_path):
    source = tmp_path / "gather.cu"
    source.write_text(
        "__global__ void k(const float* x, float* y, const int* at) {\n"
        "  y[blockIdx.x] = x[(at[blockIdx.x] * 7) ^ 3];\n}\n"
    )
    with pytest.raises(CannotImportError, match=r"--grid"):
        import_cuda(source)
    options = ImportOptions(grid=("n",), block=("1",), extents={"x": "8 * m"})
    imported, _ = import_cuda(source, options)
    assert [(t.name, t.shape) for t in imported.tensors] == [
        ("x", ("8*m",)), ("y", ("n",)), ("at", ("n",))
    ]  # fmt: skip
    with pytest.raises(CannotImportError, match=r"gather.cu:2: .*--extent x=EXPR"):
        import_cuda(source, ImportOptions(grid=("n",), block=("1",)))
    with pytest.raises(CannotImportError, match="--sizes names q"):
        import_cuda(CORPUS / "tiled_matmul.cu", ImportOptions(sizes={"q": 1}))


def test_an_entry_is_chosen_by_name():
    imported, _ = import_cuda(CORPUS / "two_wrappers.cu", ImportOptions(entry="fill_twos"))
    assert imported.steps[0]["args"][1] == "2.0:f32"
    with pytest.raises(CannotImportError, match=r"no function 'fil'.*fill_ones, fill_twos, fill"):
        import_cuda(CORPUS / "two_wrappers.cu", ImportOptions(entry="fil"))


def test_operator_from_cuda(tmp_path):
    operator = Operator.from_cuda(
        CORPUS / "tiled_matmul.cu", folder=tmp_path, sizes={"M": 512, "N": 512, "K": 256}
    )
    assert operator.specification == "original"
    assert isinstance(operator.reference, Original)
    assert operator.workloads["large"][0].sizes == {"M": 512, "N": 512, "K": 256}


@pytest.mark.parametrize(
    ("raw", "said"),
    [(b"", "no __global__"), (b"\0\0", "no text"), (b"\xff\xfe__global__", "no __global__")],
)
def test_what_is_no_cuda_source_is_said(tmp_path, raw, said):
    path = tmp_path / "x.cu"
    path.write_bytes(raw)
    with pytest.raises(CannotImportError, match=said):
        import_cuda(path)
    with pytest.raises(CannotImportError, match="cannot be read"):
        import_cuda(tmp_path / "missing.cu")


TEXTS = {n: (CORPUS / n).read_bytes() for n in sorted(EXPECTED)}


@settings(max_examples=40, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(
    name=st.sampled_from(sorted(TEXTS)), start=st.floats(0, 1), length=st.integers(0, 60),
    text=st.sampled_from([b"", b"}", b"(", b"<<<", b"/*", b"n / 0", b"\\", b"#if", b"<", b"int*"]),
)  # fmt: skip
def test_a_broken_file_gives_a_sentence(tmp_path, monkeypatch, name, start, length, text):
    # Compiling is NVRTC's business, and slow.
    monkeypatch.setattr("kernelsearch.importing.run._check", lambda *_: None)
    raw = TEXTS[name]
    at = int(start * len(raw))
    path = tmp_path / "broken.cu"
    path.write_bytes(raw[:at] + text + raw[at + length :])
    with suppress(KernelSearchError):
        imported, _ = import_cuda(path)
        assert imported.tensors


def test_plans_divide_as_c_does():
    n, t = symbol("n"), symbol("t")
    assert plan_text(FloorDivide(n + t - 1, t)) == "ceildiv(n, t)"
    assert plan_text(FloorDivide(n + 255, n * 0 + 256)) == "ceildiv(n, 256)"
    assert plan_text(FloorDivide(n * t, t)) == "n"
    assert plan_text(FloorDivide(n - 1, n * 0 + 256) + 1) == "((n - 1) // 256) + 1"


def test_the_command_says_what_it_understood(tmp_path):
    runner = CliRunner()
    file = tmp_path / "bfs_frontier.cu"
    file.write_bytes(TEXTS["bfs_frontier.cu"])
    result = runner.invoke(app, ["import", str(file), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "offsets[nodes + 1] int32, offsets below nnz" in result.output
    assert "--set current=VALUE" in result.output
    answer = runner.invoke(
        app, ["import", str(file), "--set", "current=3", "-o", str(tmp_path / "out"), "--json"]
    )
    assert json.loads(answer.output)["assumed"] == []
    for arguments, said in (
        (["--set", "current"], "NAME=VALUE"),
        (["--sizes", "nodes=many"], "whole number"),
        (["--name", "bfs_frontier", "-o", str(tmp_path)], "would be overwritten"),
    ):
        failed = runner.invoke(app, ["import", str(file), *arguments])
        assert failed.exit_code != 0
        assert said in str(failed.exception)


@pytest.mark.parametrize("name", ["two_pass_reduce.cu", "csr_spmv.cu", "windows_relu.cu"])
def test_rules_apply_to_imported_kernels(name, tmp_path):
    imported, written = import_cuda(CORPUS / name)
    operator = load_operator(written.save(tmp_path)[0])
    parent = parse_variant(written.variant, "cuda", name)
    record = VariantRecord(parent.hash, parent.operator, "cuda", parent.source, parent.name)
    proposals = RulesProposer().propose(ProposalRequest(
        operator=operator, parent=parent, best=None, history=(), count=4,
        device=architecture_device("sm_90a"), parent_record=record, dtype=imported.element,
        workloads=operator.workloads["smoke"],
    ))  # fmt: skip
    assert len(proposals) >= 2
    for proposal in proposals:
        variant = parse_variant(proposal.source, "cuda", "child.cu")
        params = {n: c[0] for n, c in variant.tunables.items()}
        assert compile_cuda(variant.compile_job(params, imported.element, "sm_90a")).facts


@pytest.mark.parametrize("package", ["sympy", "tree_sitter", "pcpp"])
def test_without_the_extra_there_is_a_sentence(package, tmp_path):
    program = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        f"u.find_spec = lambda n, *a: None if n == {package!r} else find(n, *a)\n"
        "from kernelsearch.cli import main\n"
        "sys.argv = ['kernelsearch', 'import', 'x.cu']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "pip install 'kernelsearch[import]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["n // 2", "ceildiv(n, t) + 1", "max(3*t, n)", "n % t"])
def test_plan_text_is_read_back_as_what_it_says(text):
    assert plan_text(from_plan(text)) == text
