import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.targets.cuda_layout import ALIGN, Item, lay_out

items = st.lists(
    st.tuples(st.integers(0, 5000), st.sampled_from([0, 1, 2, 4, 16])), min_size=1, max_size=8
)


@given(items, st.sampled_from([512, 4096]), st.booleans())
def test_slots_are_aligned_apart_and_gaps_cover_the_rest(sizes, guard, shuffled):
    shuffle = random.Random(1) if shuffled else None
    layout = lay_out([Item(f"b{i}", n, m) for i, (n, m) in enumerate(sizes)], guard, shuffle)
    for slot, (nbytes, misalign) in zip(layout.slots, sizes, strict=True):
        assert slot.start % ALIGN == misalign
        assert slot.nbytes == nbytes
    stretches = [(s.start, s.end, "") for s in layout.slots if s.nbytes]
    stretches += [(g.start, g.start + g.nbytes, g.name) for g in layout.gaps()]
    at = 0
    for start, end, _ in sorted(stretches):
        assert start == at
        at = end
    assert at == layout.nbytes
    edges = [0, *(s.start for s in layout.slots), layout.nbytes]
    ends = [0, *(s.end for s in layout.slots)]
    assert all(b - a >= guard for a, b in zip(ends, edges[1:], strict=True))


def test_a_gap_is_named_after_the_nearer_buffer():
    layout = lay_out([Item("a", 100), Item("b", 100)], 512)
    names = [g.name for g in layout.gaps()]
    assert names == ["a", "a", "b", "b"]


def test_nothing_to_place():
    assert list(lay_out([], 512).gaps()) == []
    assert lay_out([], 512).nbytes == pytest.approx(512)
