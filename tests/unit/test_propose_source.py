"""The CUDA reader: tokens, structure, patterns, and metadata that survives a round trip."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.propose.draft import Draft, render_metadata
from kernelsearch.propose.source import CudaSource, Rewrite
from kernelsearch.resources import template_paths
from kernelsearch.variant import load_variant, parse_variant
from tests.support import textbook

KERNEL = """
// for (int i = 0; i < n; ++i) is only a comment
#define LIMIT 4 // {
template <int N>
__global__ __launch_bounds__(256) void scale(float* __restrict__ y, const float *x, int n) {
    const char* text = "}{ for (";
    const float *in = x + blockIdx.x * n;
#pragma unroll 4
    for (long long j = threadIdx.x; j < n; j += blockDim.x) { y[j] = in[j] * 2.0f; }
    for (int k = 0; k <= n; ++k) y[k] = 0;
    if (n > 3) for (;;) break;
}
"""


def test_tokens_skip_comments_and_keep_strings_whole() -> None:
    source = CudaSource(KERNEL)
    assert source.balanced
    assert [t.text for t in source.tokens if t.kind == "string"] == ['"}{ for ("']
    assert sum(t.text == "for" for t in source.tokens) == 3
    directives = [t.text for t in source.tokens if t.kind == "directive"]
    assert directives == ["#define LIMIT 4 // {", "#pragma unroll 4"]


def test_kernel_parameters_and_pointers() -> None:
    source = CudaSource(KERNEL)
    kernel = source.kernel("scale")
    assert kernel is not None
    assert [(p.name, p.pointee, p.const, p.restrict) for p in kernel.parameters] == [
        ("y", "float", False, True), ("x", "float", True, False), ("n", "", False, False),
    ]  # fmt: skip
    pointers = source.pointers(kernel)
    assert (pointers["in"].root, pointers["in"].const) == ("x", True)


def test_loops_tell_canonical_ones() -> None:
    source = CudaSource(KERNEL)
    kernel = source.kernel("scale")
    assert kernel is not None
    first, second, third = source.loops(kernel.open_brace, kernel.close_brace)
    assert (first.ctype, first.var, first.step) == ("long long", "j", "blockDim.x")
    assert first.pragma is not None
    assert source.slice(*first.bound) == "n"
    assert not second.canonical
    assert not third.canonical
    assert source.in_block(source.begin(first))
    assert not source.in_block(source.begin(third))


@pytest.mark.parametrize("text", ["void f() {", "int a[3;", ")("])
def test_unbalanced_source_has_no_functions(text: str) -> None:
    source = CudaSource(text)
    assert not source.balanced
    assert source.functions == []


@given(st.text(alphabet="ab0 \n#\"'/*\\(){}[];=+<>", max_size=60))
def test_any_text_is_tokenised_without_loss(text: str) -> None:
    tokens = CudaSource(text).tokens
    assert all(text[t.start : t.end] == t.text for t in tokens)
    assert all(a.end <= b.start for a, b in itertools.pairwise(tokens))


def test_overlapping_edits_are_refused() -> None:
    rewrite = Rewrite("abcdef")
    rewrite.replace(0, 3, "x")
    rewrite.replace(2, 4, "y")
    with pytest.raises(ValueError, match="overlap at character 2"):
        rewrite.result()


def test_patterns_bind_names_consistently() -> None:
    source = CudaSource("a[threadIdx.x] += a[threadIdx.x + h];")
    found = source.match(0, "$array [ $t? ] += $array [ $t? + $h ] ;")
    assert found is not None
    assert found[0] == {"array": "a", "t": "threadIdx . x", "h": "h"}
    other = CudaSource("a[i] += b[i + h];")
    assert other.match(0, "$array [ $t? ] += $array [ $t? + $h ] ;") is None


def test_every_shipped_variant_survives_a_round_trip() -> None:
    for name in textbook.CUDA:
        for target in ("cuda", "cpu"):
            for path in template_paths(name, target):
                variant = load_variant(path)
                again = parse_variant(Draft.of(variant).render(), variant.language)
                assert again.tunables == variant.tunables, path
                assert again.steps == variant.steps, path
                assert again.domain == variant.domain, path
                if target == "cpu":
                    assert again.hash == variant.hash, path


def test_metadata_keeps_awkward_strings() -> None:
    text = textbook.NUMBA["spmv_csr"].replace('"textbook"', r'"a \"quoted\" word and a \\ stroke"')
    # In the Python file the block is inside a string literal, which halves the strokes once more.
    text = text.replace("\\", "\\\\", text.count("\\"))
    draft = Draft.of(parse_variant(text, "cpu"))
    assert draft.meta["doc"] == 'a "quoted" word and a \\ stroke'
    again = Draft.of(parse_variant(draft.render(), "cpu"))
    assert again.meta == draft.meta
    assert "[[launch]]" in render_metadata(draft.meta)
