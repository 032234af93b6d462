"""What is fuzzed: for each kind of input, how it is mutated and everything that reads it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from kernelsearch import wire
from kernelsearch.archive import Archive
from kernelsearch.codec import decode, encode, seal
from kernelsearch.errors import KernelSearchError
from kernelsearch.expressions import Expression
from kernelsearch.operators_io import load_operator
from kernelsearch.records import (
    Binary,
    Candidate,
    CompileJob,
    Evaluation,
    KernelFacts,
    Proposal,
    RunReport,
    Status,
    TimeReport,
    Timing,
    VariantRecord,
)
from kernelsearch.resources import study_paths, template_paths
from kernelsearch.result import Result
from kernelsearch.settings import StudySettings, load_study_file
from kernelsearch.store_base import dumps, loads
from kernelsearch.store_journal import log_lines, usable_line
from kernelsearch.targets.cpu_check import check_source as check_python
from kernelsearch.targets.cuda_source import check_source as check_cuda
from kernelsearch.variant import Variant, metadata_text, parse_variant

FACTS = {
    "max_threads_per_block": 1024, "max_shared_per_block": 49152, "max_shared_per_sm": 233472,
    "regs_per_sm": 65536, "max_threads_per_sm": 2048, "sm_count": 132, "warp_size": 32,
    "l2_bytes": 1 << 25, "cores": 8, "cache_line_bytes": 64, "simd_bytes": 64,
}  # fmt: skip
OPERATORS = ("rms_norm", "softmax", "matrix_mul", "spmv_csr", "stencil_2d")
NAMES = {**FACTS, "rows": 33, "cols": 64, "VEC": 4, "WARPS": 8, "MODE": "wide", "elem_bytes": 4}
# Pieces that mean something to one of the readers.
PIECES = (
    "", "0", "-1", "1e999", "nan", "9" * 40, "9" * 5000, "1 << 99", "2**64", "[", "]", "{", "}",
    "[" * 400, "(" * 400, "'", '"', '"""', "/*", "*/", "\\", "\0", "\r", "\n", "\t", "\x85",
    "\u2028", "é", "😀", "\ud800", "=", ".", ",", ":", "#", "null", "true", "None", "ELEM",
    "elem_t", "import os", "eval", "__import__", "lambda: 0", "format = 1", "[[launch]]",
    "[tunables]", "A.b.c = 1", "1979-05-27", "0x", "0o7", "inf", "ceildiv(1, 0)", "min()",
    "rows", "rows ** rows", "'a' < 1", "not", "if", "else", "1 if 0 else", "x := 1",
    '#include "../../x"', '#include "mma.cuh"', "#define", '"$sum":"',
    '"$tuple":', '"$dict":[[[],1]]',
    '"$float":"x"', '"format":2', '"status":"ok"', "1e400", "\\ud800", "\\u0000",
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, seeds: list[str]) -> str:
    """Draw a text that was changed in one to eight places."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3, 8)))):
        start = int(draw(st.floats(0, 1, exclude_max=True)) * (len(text) + 1))
        length = draw(st.sampled_from((0, 0, 1, 1, 2, 5, 20, 200)))
        how = draw(st.integers(0, 4))
        taken = text[start : start + length]
        if how == 0:
            put = draw(st.sampled_from(PIECES))
        elif how == 1:
            put = draw(st.text(max_size=6))
        elif how == 2:
            put = taken * draw(st.sampled_from((2, 3, 50)))
        elif how == 3:
            other = draw(st.sampled_from(seeds))
            at = int(draw(st.floats(0, 1, exclude_max=True)) * (len(other) + 1))
            put = other[at : at + 40]
        else:
            put = ""
        text = text[:start] + put + text[start + length :]
    return text


# --- variant files and their metadata -----------------------------------------------------------


@cache
def templates() -> list[tuple[str, str]]:
    """Return language and text of every shipped variant."""
    return [
        (target, path.read_text(encoding="utf-8"))
        for target in ("cpu", "cuda") for name in OPERATORS for path in template_paths(name, target)
    ]  # fmt: skip


def use_variant(variant: Variant) -> None:
    """Do with a variant that parsed all that a search does before a compiler sees it."""
    dtype = variant.dtypes[0]
    for name in OPERATORS:
        operator = load_operator(name)
        if operator.name != variant.operator:
            continue
        variant.check_against(operator)
        params = next(variant.combinations(), {})
        variant.violated(params, FACTS, dtype)
        variant.check_params(params)
        sizes = dict.fromkeys(operator.symbols, 64)
        variant.applies(params, sizes, FACTS, dtype)
        variant.within({"w": sizes})
        variant.compile_job(params, dtype, "sm_90a", operator)
        variant.plan(params, sizes, operator.scalar_values(), FACTS, dtype)
        if variant.language == "cpu":
            check_python(variant.source, variant.path, params)
        else:
            check_cuda(variant.source)


def read_variant(drawn: tuple[str, str]) -> None:
    language, text = drawn
    use_variant(parse_variant(text, language))


@st.composite
def variant_files(draw: st.DrawFn) -> tuple[str, str]:
    language = draw(st.sampled_from(("cpu", "cuda")))
    return language, draw(mutated([t for n, t in templates() if n == language]))


@cache
def blocks() -> list[str]:
    cuda = [metadata_text(t, n, "x")[0] for n, t in templates() if n == "cuda"]
    return cuda + [p.read_text(encoding="utf-8") for p in study_paths().values()]


def read_toml(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        path.write_bytes(text.encode(errors="surrogatepass"))
        refused: KernelSearchError | None = None
        try:
            load_study_file(path)
        except KernelSearchError as error:
            refused = error
    use_variant(parse_variant(f"/* kernelsearch{text}*/\n__global__ void k() {{}}\n", "cuda"))
    if refused is not None:
        raise refused


# --- expressions --------------------------------------------------------------------------------


@cache
def expressions() -> list[str]:
    found: set[str] = set()
    for language, text in templates():
        meta = tomllib.loads(metadata_text(text, language, "x")[0])
        found |= set(meta.get("constraints", {}).values()) | set(meta.get("domain", {}).values())
        for step in meta["launch"]:
            found |= {str(e) for e in (*step.get("grid", ()), *step.get("block", ()))}
    more = [
        "(rows + 1) // VEC * 2**10 % 7",
        "min(rows, cols, 3) if WARPS > 4 else ilog2(rows)",
        "MODE == 'wide' and not rows < 1 or ispow2(cols)",
        "next_pow2(rows) / round_up(3, 4)",
    ]
    return sorted(found) + more


@cache
def names() -> dict[str, int | str]:
    """Return a value for every name that the unchanged expressions use."""
    used = {n for e in expressions() for n in Expression.parse(e).names}
    return {**dict.fromkeys(used, 4), **NAMES}


def read_expression(text: str) -> None:
    parsed = Expression.parse(text)
    known = names()
    parsed.evaluate(known)
    parsed.truth(known)
    parsed.bind({"rows": 7, "cols": -3}).evaluate(known)
    parsed.integer(known)


# --- records ------------------------------------------------------------------------------------


@cache
def records() -> list[str]:
    candidate = Candidate("00ff", (("MODE", "wide"), ("VEC", 4)), "float32")
    conditions = {"before": {"throttle": ["x"]}, "pair": (1, float("nan"))}
    timing = Timing("rows=4,cols=8", (1.5, 2.5), (1.0, 2.0), 3.5, 0.5, 0.1, "cold", conditions)
    ok = Evaluation(candidate, Status.OK, "", {"a": {1: 2}}, (timing,),
                    (KernelFacts("k", 32, param_bytes=(8, 4)),), "c0de", {"compile": 0.1},
                    ("case",), True, "dev", "set", 1.0)  # fmt: skip
    wrong = replace(ok, status=Status.WRONG, timings=(), message="at [0, 1]", confirmed=False)
    variant = VariantRecord("00ff", "rms_norm", "cpu", templates()[0][1][:300], name="v",
                            suggested_params=(("VEC", 4),), created=1.0)  # fmt: skip
    proposal = Proposal("source", "00ff", "rules", "vectorise", "why")
    texts = [encode(r) for r in (ok, wrong, variant, proposal)]
    texts.append(dumps({"format": 1, "operator": "rms_norm", "limits": [1, 2.5], "t": (1,)}))
    settings = StudySettings("rms_norm", "cpu", "float32",
                             (load_operator("rms_norm").workloads["smoke"][0],))  # fmt: skip
    texts.append(dumps(settings.to_json()))
    texts.append(json.dumps({"kind": "evaluation", "key": "k", "revision": 0, "at": 1.0,
                             "body": json.loads(texts[0])}, separators=(",", ":")))  # fmt: skip
    return texts


@st.composite
def study_records(draw: st.DrawFn) -> str:
    """Draw a mutated record, sealed before the change, after it, or not at all."""
    how = draw(st.integers(0, 3))
    if how == 0:
        return draw(mutated([seal(r) for r in records()]))
    text = draw(mutated(records()))
    return seal(text) if how == 1 and text.endswith("}") else text


def read_record(text: str) -> None:
    usable_line((text + "\n").encode(errors="surrogatepass"))
    list(log_lines(text.encode(errors="surrogatepass")))
    for read in (_read_free, _read_settings, _read_result):
        refusal(partial(read, text))
    _read_one(text)


def _read_one(text: str) -> None:
    record = decode(text)
    again = decode(encode(record))
    assert encode(again) == encode(record)
    if isinstance(record, Evaluation):
        archive = Archive("geometric_mean", {})
        archive.add(record)
        archive.set_baseline({"rows=4,cols=8": 2.0})
        archive.objective(record)
        archive.elites(3)
        archive.statuses()
    if isinstance(record, VariantRecord):
        archive = Archive("geometric_mean", {})
        archive.add_variant(record)
        archive.path_to_root(record.hash)


def _read_free(text: str) -> None:
    loads(text, "settings")


def _read_settings(text: str) -> None:
    StudySettings.from_json(loads(text, "settings"))


def _read_result(text: str) -> None:
    Result.from_json(loads(text, "result"))


# --- messages of a worker -----------------------------------------------------------------------

JOB = CompileJob("cpu", "source", ("k",), "x86", "f.py")


@cache
def messages() -> list[str]:
    binary = Binary(JOB.key, JOB, b"\x7fELF", "c0de", {"k": "k"}, (KernelFacts("k", 32),), "log",
                    0.1, ())  # fmt: skip
    times = TimeReport(((1.0, 2.0), (3.0, 4.0)), (5.0,), 8, (0, 1), "cold",
                       conditions={"before": {"mhz": 2100.0, "throttle": ["x"]}})  # fmt: skip
    failure = wire.encode_failure(KernelSearchError("at [0, 1]"))
    answers = (binary, times, RunReport(("y",), ("x",), 0.5), {"dram_gbps": 10.5}, None)
    return [failure.decode(), *(wire.encode_answer(a).decode() for a in answers)]


def read_message(text: str) -> None:
    answer = wire.decode(text.encode(errors="surrogatepass"))
    refused: KernelSearchError | None = None
    for read in (wire.run_report, wire.time_report, wire.rates,
                 lambda a: wire.binary(a, JOB)):  # fmt: skip
        try:
            read(answer)
        except KernelSearchError as error:
            refused = error
    if refused is not None:
        raise refused


# --- all of them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """One kind of input: what is drawn, and what reads it."""

    kind: str
    drawn: Callable[[], st.SearchStrategy[Any]]
    read: Callable[[Any], None]


SUBJECTS = (
    Subject("variant_files", variant_files, read_variant),
    Subject("toml_blocks", lambda: mutated(blocks()), read_toml),
    Subject("expressions", lambda: mutated(expressions()), read_expression),
    Subject("study_records", study_records, read_record),
    Subject("worker_messages", lambda: mutated(messages()), read_message),
)


def outcome(subject: Subject, value: Any) -> str:
    """Read one input; return the class of the error it got, "" if it was read.

    Anything but an error of ours, or one without a clear text, is raised.
    """
    error = refusal(lambda: subject.read(value))
    return type(error).__name__ if error is not None else ""


def refusal(read: Callable[[], object]) -> KernelSearchError | None:
    """Return the error of ours that a reader raises, which must have a text, or None."""
    try:
        read()
        return None
    except KernelSearchError as error:
        refused = error
    text = str(refused)
    assert text.strip(), f"{type(refused).__name__} says nothing: {text!r}"
    assert len(text) < 40_000, f"{type(refused).__name__} says {len(text)} characters"
    return refused
