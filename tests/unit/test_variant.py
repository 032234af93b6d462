"""Variant files: what parses, what does not and where, hashes, includes and bound plans."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.errors import RejectedError, VariantError
from kernelsearch.operator import ErrorModel, Operator, Scalar, Tensor, Workload
from kernelsearch.records import FillStep, KernelStep, ScalarArg
from kernelsearch.resources import resource_folder
from kernelsearch.variant import MAX_SOURCE_BYTES, Variant, load_variant, parse_variant

META = """\
format = 1
operator = "rms_norm"
doc = "one warp a row"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80", precision = "strict"}
[tunables]
WARPS = [1, 2, 4]
MODE = ["tiled", "plain"]
[constraints]
fits = "WARPS * 32 <= max_threads_per_block"
[domain]
aligned = "cols % 4 == 0"
[workspace]
partial = {dtype = "elem", shape = ["ceildiv(rows, WARPS)", 2]}
[tensormap]
x_map = {tensor = "x", box = [1, "WARPS * 8"], swizzle = "128B"}
[[launch]]
fill = "y"
value = 255
[[launch]]
kernel = "rms_norm<WARPS, elem_t>"
grid = ["ceildiv(rows, WARPS)"]
block = [32, "WARPS"]
shared = "WARPS * elem_bytes"
cluster = ["2"]
cooperative = true
args = ["y", "x_map", "partial", "rows:i64", "cols * 2:i32", "eps:f32"]
[[launch]]
kernel = "tail"
grid = [1]
block = [1]
args = ["y"]
when = "rows % WARPS != 0"
"""
FACTS = {"max_threads_per_block": 64, "warp_size": 32}
SIZES = {"rows": 10, "cols": 8}
PARAMS = {"WARPS": 2, "MODE": "tiled"}


def cuda_text(meta: str = META, body: str = "__global__ void tail() {}\n") -> str:
    return f"// A comment first.\n/* kernelsearch\n{meta}*/\n{body}"


def cuda(meta: str = META, body: str = "__global__ void tail() {}\n") -> Variant:
    return parse_variant(cuda_text(meta, body), "cuda", "dir/v.cu")


def python_text(extra: str = "", body: str = "def f(y, x):\n    y[0] = x[0]\n") -> str:
    meta = f'format = 1\noperator = "copy"\n{extra}\n[[launch]]\nkernel = "f"\nargs = ["y", "x"]\n'
    return f'"""kernelsearch\n{meta}"""\nimport numpy as np\n\n{body}'


def cpu(extra: str = "", body: str = "def f(y, x):\n    y[0] = x[0]\n") -> Variant:
    return parse_variant(python_text(extra, body), "cpu", "dir/v.py")


def operator(**changes: object) -> Operator:
    fields: dict[str, object] = {
        "name": "rms_norm", "doc": "d",
        "arguments": (
            Tensor("y", "elem", ("rows", "cols"), "out"), Tensor("x", "elem", ("rows", "cols")),
            Scalar("eps", "float32", 1e-5),
        ),
        "reference": lambda arrays, scalars, rows: {},
        "generate": lambda sizes, distribution, rng, dtype: {},
        "workloads": {"smoke": (Workload(SIZES),)}, "error": ErrorModel(), "flops": "rows * cols",
        "bytes": "2 * rows * cols * elem_bytes",
    }  # fmt: skip
    return Operator(**{**fields, **changes})  # type: ignore[arg-type]


# --- what parses --------------------------------------------------------------------------------


def test_every_key_is_read() -> None:
    v = cuda()
    assert (v.operator, v.language, v.doc, v.name) == ("rms_norm", "cuda", "one warp a row", "v")
    assert v.dtypes == ("float32", "bfloat16")
    assert (v.arch, v.precision) == ("sm_80", "strict")
    assert v.tunables == {"WARPS": (1, 2, 4), "MODE": ("tiled", "plain")}
    assert v.workspace["partial"][0] == "elem"
    assert v.tensormaps["x_map"][2:] == ("128B", "none")
    assert [s.fill or s.kernel for s in v.steps] == ["y", "rms_norm<WARPS, elem_t>", "tail"]
    assert v.source.startswith("// A comment")


def test_a_python_variant() -> None:
    v = cpu('[numba]\nparallel = true\nfastmath = ["contract"]\n[tunables]\nT = [1, 2]')
    assert v.numba == {"parallel": True, "fastmath": ["contract"]}
    assert v.steps[0].grid == ()
    job = v.compile_job({"T": 2}, "float32", "x86")
    assert dict(job.options)["defines"] == (("T", 2),)
    assert hash(job) == hash(v.compile_job({"T": 2}, "float32", "x86"))
    assert job.key != v.compile_job({"T": 1}, "float32", "x86").key


@pytest.mark.parametrize("path", sorted(resource_folder("templates").glob("*/*/*.*")), ids=str)
def test_every_shipped_template_parses(path: Path) -> None:
    if path.suffix in (".cu", ".py"):
        variant = load_variant(path)
        assert variant.operator == path.parent.name
        assert parse_variant(variant.source, variant.language).hash == variant.hash


# --- what does not, and where -------------------------------------------------------------------


def line_of(needle: str, text: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "format = 2", "format must be 1"),
        ("format = 1", "format = true", "format must be 1"),
        ('doc = "one warp a row"', "doc = 3", "doc must be a string"),
        ('dtypes = ["float32", "bfloat16"]', 'dtypes = ["floaty"]', "dtypes must list"),
        ('dtypes = ["float32", "bfloat16"]', 'dtypes = [["float32"]]', "dtypes must list"),
        ('dtypes = ["float32", "bfloat16"]', "dtypes = []", "dtypes must list"),
        ('arch = "sm_80"', 'arch = "ampere"', "must look like sm_90"),
        ('precision = "strict"', 'precision = "loose"', "precision must be one of"),
        ('arch = "sm_80"', "driver = 3", "requires knows arch and precision"),
        ("WARPS = [1, 2, 4]", "WARPS = 4", "WARPS must list"),
        ("WARPS = [1, 2, 4]", "WARPS = []", "WARPS must list"),
        ("WARPS = [1, 2, 4]", "WARPS = [1.5]", "WARPS must list"),
        ("WARPS = [1, 2, 4]", "WARPS = [true]", "WARPS must list"),
        ("WARPS = [1, 2, 4]", "WARPS = [1, 2, 1]", "lists a choice twice"),
        ('MODE = ["tiled", "plain"]', 'MODE = ["a b"]', "words must be identifiers"),
        ('MODE = ["tiled", "plain"]', '"a-b" = [1]', "is not an identifier"),
        ('fits = "WARPS * 32', 'fits = "WRAPS * 32', "uses ['WRAPS']"),
        ('fits = "WARPS * 32', 'fits = "rows * 32', "uses ['rows']"),
        ('aligned = "cols % 4 == 0"', "aligned = true", "must be an expression"),
        ('aligned = "cols % 4 == 0"', 'aligned = "cols %"', "is not an expression"),
        ('dtype = "elem"', 'dtype = "word"', "unknown dtype 'word'"),
        ('dtype = "elem"', 'dtype = ["elem"]', "unknown dtype"),
        ('swizzle = "128B"', 'swizzle = "1B"', "swizzle '1B' is unknown"),
        ('swizzle = "128B"', 'l2_promotion = "1B"', "l2_promotion '1B' is unknown"),
        ('tensor = "x"', "tensor = 1", "tensor must be a name"),
        ('tensor = "x", box', "box", "must have tensor and box"),
        ("x_map = {tensor", "partial = {tensor", "both a workspace and a tensormap"),
        ("value = 255", "value = 256", "a fill step has fill"),
        ("value = 255", "value = true", "a fill step has fill"),
        ("value = 255", "grid = [1]", "a fill step has fill"),
        ('fill = "y"', "fill = 1", "a fill step has fill"),
        ("cooperative = true", 'cooperative = "no"', "cooperative must be true or false"),
        ('cluster = ["2"]', 'clutter = ["2"]', "unknown key 'clutter'"),
        ('cluster = ["2"]', "cluster = []", "cluster must be a list of 1 to 3"),
        ('block = [32, "WARPS"]', "block = [1, 1, 1, 1]", "block must be a list of 1 to 3"),
        ('block = [32, "WARPS"]', "", "block must be a list of 1 to 3"),
        ('"eps:f32"', '"eps:f16"', "type must be one of"),
        ('"eps:f32"', '"y + 1"', "must be a name, or expression:type"),
        ('"cols * 2:i32"', '"cols * :i32"', "is not an expression"),
        ('"eps:f32"', "3", "must be strings"),
        ('kernel = "tail"', "kernel = 3", 'needs kernel = "name"'),
    ],
)
def test_errors_say_what_and_where(old: str, new: str, message: str) -> None:
    text = cuda_text()
    assert old in text
    changed = text.replace(old, new)
    with pytest.raises(VariantError, match=re.escape(message)) as caught:
        parse_variant(changed, "cuda", "dir/v.cu")
    assert caught.value.line is not None
    assert str(caught.value).startswith(f"dir/v.cu:{caught.value.line}")


@pytest.mark.parametrize(
    ("old", "new", "needle", "column"),
    [
        ("WARPS = [1, 2, 4]", "WARPS = 4", "WARPS = 4", 1),
        ('dtypes = ["float32", "bfloat16"]', "dtypes = 1", "dtypes = 1", 1),
        ('precision = "strict"', 'precision = "loose"', "requires", 29),
        ('"eps:f32"', '"eps:f16"', "args", 63),
        ("value = 255", "surplus = 1", "fill", 1),
        ("WARPS = [1, 2, 4]", "WARPS = [1, 2", "WARPS = [1, 2", None),
        ('doc = "one', "doc = one", "doc = one", 7),
    ],
)
def test_errors_point_at_line_and_column(
    old: str, new: str, needle: str, column: int | None
) -> None:
    changed = cuda_text().replace(old, new)
    with pytest.raises(VariantError) as caught:
        parse_variant(changed, "cuda", "v.cu")
    if column is not None:
        assert (caught.value.line, caught.value.column) == (line_of(needle, changed), column)
    else:
        assert caught.value.line in (line_of(needle, changed), line_of(needle, changed) + 1)


def test_a_short_name_is_found_as_a_word() -> None:
    meta = 'format = 1\noperator = "NAN"\n[tunables]\nN = 3\n[[launch]]\nkernel = "k"\n'
    with pytest.raises(VariantError) as caught:
        cuda(meta)
    assert (caught.value.line, caught.value.column) == (6, 1)


def test_python_errors_have_lines_too() -> None:
    with pytest.raises(VariantError) as caught:
        parse_variant("x = (\n", "cpu", "v.py")
    assert caught.value.line == 1
    text = '# first\n"""\n\n  kernelsearch\nformat = 2\n"""\n'
    with pytest.raises(VariantError, match="format must be 1") as caught:
        parse_variant(text, "cpu", "v.py")
    assert caught.value.line == 5


@pytest.mark.parametrize(
    ("text", "language", "message"),
    [
        ("int x;", "cuda", "has no /* kernelsearch"),
        ("/* kernelsearcher */", "cuda", "has no /* kernelsearch"),
        ("/* kernelsearch\n*/", "cuda", "format must be 1"),
        ("/* kernelsearch\nformat = 1\n*/", "cuda", "operator must be a string"),
        ('/* kernelsearch\nformat = 1\noperator = "a"\n*/', "cuda", "needs at least one"),
        ('/* kernelsearch\nformat = 1\noperator = "a"\nlaunch = 1\n*/', "cuda", "needs at least"),
        (
            '/* kernelsearch\nformat = 1\noperator = "a"\nlaunch = [1]\n*/',
            "cuda",
            "must be a table",
        ),
        (
            '/* kernelsearch\nformat = 1\noperator = "a"\nlunch = 1\n*/',
            "cuda",
            "unknown key 'lunch'",
        ),
        (
            '/* kernelsearch\nformat = 1\noperator = "a"\ntunables = 1\n*/',
            "cuda",
            "must be a table",
        ),
        ("x = 1", "cpu", "must begin with a string"),
        ("", "cpu", "must begin with a string"),
        ('"""kernelsearching"""', "cpu", "must begin with a string"),
        ("x = '\0'", "cpu", "NUL"),
        ("\ud800", "cuda", "is not Unicode text (character 0)"),
        ("x" * (MAX_SOURCE_BYTES + 1), "cuda", "is larger than"),
        ("(" * 500, "cpu", "is not Python"),
        (python_text(body="x = " + "1+" * 20_000 + "1\n"), "cpu", "is not Python: maximum rec"),
        (python_text(body="x = " + "-" * 900 + "1\n"), "cpu", "is nested too deeply"),
    ],
)
def test_files_that_are_no_variants(text: str, language: str, message: str) -> None:
    with pytest.raises(VariantError, match=re.escape(message)):
        parse_variant(text, language)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("[numba]\nfastmath = true", "needs requires.precision = 'fast'"),
        ('[numba]\nfastmath = ["afn"]', "need precision = 'fast'"),
        ('[numba]\nfastmath = ["turbo"]', "fastmath flags are"),
        ('[numba]\nfastmath = [["afn"]]', "fastmath flags are"),
        ("[numba]\nfastmath = 3", "fastmath must be"),
        ("[numba]\nparallel = 3", "parallel must be"),
        ("[numba]\nnogil = true", "knows parallel and fastmath"),
    ],
)
def test_numba_options(extra: str, message: str) -> None:
    with pytest.raises(VariantError, match=re.escape(message)):
        cpu(extra)
    with pytest.raises(VariantError, match="belongs to"):
        cuda(META.replace("[tunables]", f"{extra}\n[tunables]"))
    fast = 'requires = {precision = "fast"}\n[numba]\nfastmath = true'
    assert cpu(fast).numba == {"fastmath": True}


def test_python_steps_have_no_grid() -> None:
    text = python_text().replace('kernel = "f"', 'kernel = "f"\ngrid = [1]')
    with pytest.raises(VariantError, match="only kernel, args and when"):
        parse_variant(text, "cpu")
    with pytest.raises(VariantError, match="args of f must be a list"):
        parse_variant(python_text().replace('["y", "x"]', '"yx"'), "cpu")


def test_too_many_launches() -> None:
    meta = 'format = 1\noperator = "a"\n' + '[[launch]]\nfill = "y"\n' * 65
    with pytest.raises(VariantError, match="65 launch steps; at most 64"):
        cuda(meta)


toml_values = st.recursive(
    st.integers(-5, 5).map(str) | st.sampled_from(['"x"', "true", "1.5", '"rows + 1"', "[]"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]")
    | st.dictionaries(
        st.sampled_from(["dtype", "shape", "tensor", "box", "kernel", "args", "fill"]),
        inner, max_size=3,
    )
    .map(lambda d: "{" + ", ".join(f"{k} = {v}" for k, v in d.items()) + "}"),
    max_leaves=6,
)  # fmt: skip


@given(st.dictionaries(
    st.sampled_from(["operator", "doc", "dtypes", "requires", "tunables", "constraints", "domain",
                     "workspace", "tensormap", "numba", "launch", "other"]),
    toml_values, max_size=6,
))  # fmt: skip
def test_any_toml_parses_or_is_refused(meta: dict[str, str]) -> None:
    text = "format = 1\n" + "".join(f"{k} = {v}\n" for k, v in meta.items())
    for file, language in ((cuda_text(text), "cuda"), (f'"""kernelsearch\n{text}"""\n', "cpu")):
        message = "<variant>:"
        try:
            parse_variant(file, language)
        except VariantError as error:
            message = str(error)
        assert message.startswith("<variant>:")


@given(st.text(max_size=200))
def test_any_text_is_refused_politely(text: str) -> None:
    for language in ("cuda", "cpu"):
        with pytest.raises(VariantError):
            parse_variant(text, language)


# --- files --------------------------------------------------------------------------------------


def test_loading_files(tmp_path: Path) -> None:
    good = tmp_path / "mine.cu"
    good.write_text(cuda_text())
    assert load_variant(good).name == "mine"
    for name, contents, message in [
        ("x.txt", b"", "must end in .cu or .py"),
        ("bad.cu", b"\xff\xfe", "is not UTF-8 text (byte 0)"),
    ]:
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(VariantError, match=re.escape(message)):
            load_variant(tmp_path / name)
    with pytest.raises(VariantError, match="cannot be read"):
        load_variant(tmp_path / "missing.cu")
    (tmp_path / "folder.cu").mkdir()
    with pytest.raises(VariantError, match="cannot be read"):
        load_variant(tmp_path / "folder.cu")


def test_includes_are_resolved_once_with_line_markers(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\nint a;\n#include "a.cuh"\n')
    (tmp_path / "b.cuh").write_text("int b;\n")
    text = cuda_text(body='#include "a.cuh"\n  #  include "b.cuh" // again\nint c;\n')
    v = parse_variant(text, "cuda", "dir/v.cu", tmp_path)
    code = v.source.partition("*/\n")[2]
    assert "#include" not in code
    assert code.count("int a;") == code.count("int b;") == 1
    marker = code.index('#line 1 "a.cuh"')
    assert marker < code.index('#line 1 "b.cuh"') < code.index("int b;") < code.index("int a;")
    own = text.split("\n").index("int c;")
    assert f'#line {own} "v.cu"' in code


def test_an_included_header_is_part_of_the_hash(tmp_path: Path) -> None:
    text = cuda_text(body='#include "a.cuh"\n')
    hashes = []
    for contents in ("int a;\n", "int a;\n", "int b;\n"):
        (tmp_path / "a.cuh").write_text(contents)
        hashes.append(parse_variant(text, "cuda", "v.cu", tmp_path).hash)
    assert hashes[0] == hashes[1] != hashes[2]
    (tmp_path / "a.cuh").write_text("int a;\n")
    renamed = parse_variant(text, "cuda", "elsewhere/other.cu", tmp_path)
    assert renamed.hash == hashes[0]
    assert parse_variant(renamed.source, "cuda", "stored.cu", tmp_path).hash == hashes[0]


@pytest.mark.parametrize("name", ["missing.cuh", "../secret", "/etc/passwd", "sub/../../secret"])
def test_includes_from_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    (tmp_path / "secret").write_text("hush")
    text = cuda_text(body=f'\n#include "{name}"\n')
    with pytest.raises(VariantError, match="is not a header of templates/cuda/include") as caught:
        parse_variant(text, "cuda", "v.cu", headers)
    assert caught.value.line == line_of("#include", text)


# --- hashes -------------------------------------------------------------------------------------


def test_what_does_not_change_a_hash() -> None:
    assert cuda().hash == cuda(META.replace("one warp a row", "other words")).hash
    assert cuda().hash == cuda(META.replace("[domain]", "# a remark\n\n[domain]")).hash
    assert cuda().hash == cuda(body="\n__global__ void tail() {}   \n\n").hash
    assert cuda().hash == parse_variant(cuda_text(), "cuda", "other.cu").hash
    spaced = "# remark\ndef f(y, x):\n\n    y[0] = (x[0])\n"
    assert cpu().hash == cpu(body=spaced).hash


def test_what_changes_a_hash() -> None:
    different = [
        cuda(), cuda(META.replace("[1, 2, 4]", "[1, 2]")), cuda(META.replace("255", "254")),
        cuda(body="__global__ void tail() { return; }\n"), cpu(),
        cpu(body="def f(y, x):\n    y[0] = x[1]\n"), cpu("[numba]\nparallel = true"),
    ]  # fmt: skip
    assert len({v.hash for v in different}) == len(different)


def test_the_hash_is_stable_between_versions_of_this_package() -> None:
    # Archives name variants by this hash: a change here orphans every stored study.
    text = '/* kernelsearch\nformat = 1\noperator = "a"\n[[launch]]\nfill = "y"\n*/\nint a;\n'
    assert parse_variant(text, "cuda").hash == "f7f92b1ed4801757"


# --- params and plans ---------------------------------------------------------------------------


def test_combinations_and_constraints() -> None:
    v = cuda()
    assert len(list(v.combinations())) == 6
    valid = v.valid_params(FACTS, "float32")
    assert [p["WARPS"] for p in valid] == [1, 1, 2, 2]
    assert v.violated({"WARPS": 4, "MODE": "tiled"}, FACTS, "float32") == "fits"
    assert len(v.valid_params(FACTS, "float32", limit=3)) == 3
    assert list(cpu().combinations()) == [{}]
    # A fact that this device does not have: the constraint cannot be met.
    assert v.violated(PARAMS, {}, "float32") == "fits"


def test_a_domain_becomes_constraints_for_given_workloads() -> None:
    text = (
        '/* kernelsearch\nformat = 1\noperator = "a"\n[tunables]\nW = [1, 2, 4, 8]\n[domain]\n'
        'whole = "cols % W == 0"\naligned = "align_x >= W"\n[[launch]]\nfill = "y"\n*/\n'
    )
    v = parse_variant(text, "cuda")
    inside = v.within({"a": {"cols": 12}, "b": {"cols": 6}})
    assert [p["W"] for p in inside.valid_params({}, "float32")] == [1, 2]
    assert v.within({"a": {"cols": 7}}).first_params({}, "float32") == {"W": 1}
    assert inside.hash == v.hash


def test_params_are_checked() -> None:
    v = cuda()
    v.check_params(PARAMS)
    for params in ({"WARPS": 3, "MODE": "tiled"}, {"WARPS": 2}, {**PARAMS, "X": 1}):
        with pytest.raises(RejectedError):
            v.check_params(params)
    assert v.candidate(PARAMS, "float32").values == PARAMS


def test_a_bound_plan() -> None:
    plan = cuda().plan(PARAMS, {"rows": 9, "cols": 8}, {"eps": 1e-5}, FACTS, "bfloat16")
    fill, step, tail = plan.steps
    assert fill == FillStep("y", 255)
    assert step == KernelStep(
        "rms_norm<2, elem_t>",
        ("y", "x_map", "partial",
         ScalarArg("i64", 9), ScalarArg("i32", 16), ScalarArg("f32", 1e-5)),
        (5, 1, 1), (32, 2, 1), 4, (2, 1, 1), True,
    )  # fmt: skip
    assert isinstance(tail, KernelStep)
    assert tail.kernel == "tail"
    assert plan.workspaces[0].shape == (5, 2)
    assert plan.workspace_bytes == 20
    assert plan.tensormaps[0].box == (1, 16)
    assert hash(plan) == hash(plan)


def test_steps_that_are_skipped() -> None:
    plan = cuda().plan(PARAMS, {"rows": 0, "cols": 8}, {"eps": 0.0}, FACTS, "float32")
    assert plan.steps == (FillStep("y", 255),)
    assert plan.workspaces[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("argument", "sizes", "message"),
    [
        ("rows * cols:i32", {"rows": 1 << 16, "cols": 1 << 15}, "does not fit in i32"),
        ("rows * cols:u32", {"rows": 1 << 16, "cols": 1 << 16}, "does not fit in u32"),
        ("rows - cols:u64", {"rows": 1, "cols": 4}, "does not fit in u64"),
        ("rows / 3:i32", {"rows": 4, "cols": 4}, "must give an integer"),
        ("MODE:f32", {"rows": 4, "cols": 4}, "gives a word"),
        ("rows // (cols - 4):i32", {"rows": 4, "cols": 4}, "divides by zero"),
        ("depth:i32", {"rows": 4, "cols": 4}, "unknown name 'depth'"),
    ],
)
def test_plans_that_cannot_be_bound(argument: str, sizes: dict[str, int], message: str) -> None:
    v = cuda(META.replace("eps:f32", argument))
    with pytest.raises(RejectedError, match=re.escape(message)):
        v.plan(PARAMS, sizes, {"eps": 1e-5}, FACTS, "float32")


def test_the_largest_values_that_fit() -> None:
    v = cuda(META.replace("eps:f32", "rows * cols - 1:i32"))
    plan = v.plan(PARAMS, {"rows": 1 << 16, "cols": 1 << 15}, {}, FACTS, "float32")
    assert isinstance(plan.steps[1], KernelStep)
    assert plan.steps[1].args[-1] == ScalarArg("i32", (1 << 31) - 1)


def test_domains() -> None:
    v = cuda()
    assert v.applies(PARAMS, SIZES, FACTS, "float32") is None
    assert v.applies(PARAMS, {"rows": 1, "cols": 7}, FACTS, "float32") == "aligned"
    views = cuda(META.replace("cols % 4 == 0", "align_x >= 16"))
    assert views.applies(PARAMS, SIZES, FACTS, "float32") is None
    assert views.applies(PARAMS, SIZES, FACTS, "float32", {"x": 4}) == "aligned"


def test_kernel_names() -> None:
    v = cuda()
    assert v.kernel_name("k<WARPS, WARPS2, elem_t, MODE>", PARAMS) == "k<2, WARPS2, elem_t, tiled>"
    assert v.compile_job(PARAMS, "float32", "sm_90").kernels == ("rms_norm<2, elem_t>", "tail")


# --- against an operator ------------------------------------------------------------------------


def test_a_variant_that_fits_its_operator() -> None:
    cuda().check_against(operator())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('operator = "rms_norm"', 'operator = "softmax"', "is for operator 'softmax'"),
        ('args = ["y", "x_map"', 'args = ["y", "weight"', "launch names 'weight'"),
        ('fill = "y"', 'fill = "x_map"', "launch names 'x_map'"),
        ('precision = "strict"', 'precision = "fast"', "allows only 'strict'"),
        ("cols % 4", "columns % 4", "[domain] aligned uses ['columns']"),
    ],
)
def test_variants_that_do_not(old: str, new: str, message: str) -> None:
    with pytest.raises(VariantError, match=re.escape(message)):
        cuda(META.replace(old, new)).check_against(operator())


def test_the_example_of_the_documentation_parses() -> None:
    text = (Path(__file__).parents[2] / "docs" / "variants.md").read_text()
    block = text.partition("```\n")[2].partition("```")[0]
    v = parse_variant(block, "cuda")
    assert v.operator == "rms_norm"
    assert textwrap.dedent(block).startswith("/* kernelsearch")
    assert np.prod([len(c) for c in v.tunables.values()]) == 12


def test_what_a_constraint_forbids_is_not_gone_through_one_by_one() -> None:
    lists = "\n".join(f"T{i} = {list(range(1, 17))}" for i in range(10))
    text = (
        '/* kernelsearch\nformat = 1\noperator = "rms_norm"\n[tunables]\n'
        + lists
        + '\n[constraints]\nfirst = "T0 == 16"\nlast = "T0 + T9 == 32"\n'
        '[[launch]]\nkernel = "k"\ngrid = [1]\nblock = [1]\nargs = ["y"]\n*/\n'
        "__global__ void k(elem_t* y) {}\n"
    )
    variant = parse_variant(text, "cuda", "wide.cu")
    # 16^10 combinations: fifteen sixteenths fall with the first tunable.
    params = variant.default_params({}, "float32")
    assert (params["T0"], params["T9"]) == (16, 16)
    few = variant.valid_params({}, "float32", limit=1000)
    assert 10 < len(few) <= 1000
    assert all(variant.violated(p, {}, "float32") is None for p in few)
