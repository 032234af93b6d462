"""Loop depths of instruction listings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.loops import loop_depths


def test_a_nest_of_two_loops() -> None:
    #  0: a  1: b  2: jump 1?  3: jump 0?  4: return
    depths, loops = loop_depths(5, [(2, 1, True), (3, 0, True)], [4])
    assert depths == [1, 2, 2, 1, 0]
    assert loops == 2


def test_a_jump_back_from_cold_code_is_no_loop() -> None:
    # 0: jump 3?  1: work  2: return  3: cold  4: jump 1
    depths, loops = loop_depths(5, [(0, 3, True), (4, 1, False)], [2])
    assert (depths, loops) == ([0] * 5, 0)


def test_two_jumps_to_one_header_are_one_loop() -> None:
    depths, loops = loop_depths(4, [(1, 0, True), (2, 0, True)], [3])
    assert (depths, loops) == ([1, 1, 1, 0], 1)


@given(st.data())
def test_any_graph_is_survived(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    places = st.integers(0, max(0, count - 1))
    jumps = data.draw(st.lists(st.tuples(places, places, st.booleans()), max_size=8))
    ends = data.draw(st.lists(places, max_size=3))
    depths, loops = loop_depths(count, jumps if count else [], ends if count else [])
    assert len(depths) == count
    assert all(0 <= d <= loops for d in depths)
