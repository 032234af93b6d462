"""The classifier: what it names, and that it says unknown, with the reason, where it cannot."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.classify import SOURCES, TABLE_FILE, classify, read_table, shipped_table
from kernelsearch.diagnosis import MAX_EVIDENCE, UNKNOWN, Diagnosis
from kernelsearch.errors import SpecError
from kernelsearch.profile.counters import (
    COUNTS,
    SHARES,
    Counters,
    combined,
    derived,
    read_counters,
)

BUSY = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 91.0,
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": 40.0,
    "smsp__issue_active.avg.pct_of_peak_sustained_active": 12.0,
    "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": 4.0,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 80.0,
}
QUIET = dict.fromkeys(BUSY, 8.0)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def label_of(raw: dict[str, object], **facts: float) -> str:
    return classify({**derived(read_counters(raw)), **facts}, "counters").label


def test_bandwidth_is_named_with_the_number_that_says_so() -> None:
    found = classify(derived(read_counters(BUSY)), "counters")
    assert (found.label, found.group) == ("dram", "memory-bandwidth")
    assert found.findings[0].evidence["use_dram"] == pytest.approx(0.91)
    assert found.headroom == pytest.approx(1 / 0.91, rel=1e-3)
    assert 0.5 < found.confidence <= 0.9


@pytest.mark.parametrize(
    ("more", "facts", "label"),
    [
        ({"l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": 9e6,
          "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": 9e6,
          "lts__t_sectors_op_read.sum": 9e6}, {}, "spills"),
        ({"l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed": 85.0,
          "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 8e6,
          "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 6e6}, {}, "bank-conflicts"),
        ({"l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed": 85.0},
         {}, "shared"),
        ({STALL.format("barrier"): 6.0, STALL.format("wait"): 2.0}, {}, "barrier"),
        ({"smsp__thread_inst_executed_per_inst_executed.ratio": 6.0}, {}, "divergence"),
        ({"lts__t_sectors_op_red.sum": 5e6, "lts__t_sectors_op_read.sum": 5e6}, {}, "atomics"),
        ({"smsp__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active": 80.0}, {}, "fp64"),
        ({"smsp__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": 80.0}, {}, "sfu"),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 70.0}, {}, "tensor"),
        ({STALL.format("no_instruction"): 8.0, STALL.format("wait"): 2.0}, {},
         "instruction-cache"),
        ({STALL.format("long_scoreboard"): 9.0, STALL.format("wait"): 1.0}, {}, "latency"),
        ({}, {"limit_grid": 1, "idle_fraction": 0.9, "waves": 0.1}, "grid"),
        ({}, {"limit_grid": 0, "idle_fraction": 0.45, "waves": 1.1}, "tail"),
        ({}, {"limit_registers": 1}, "occupancy-registers"),
        ({}, {"time_us": 2.5, "launch_us": 1.5, "launches": 1}, "launch"),
    ],
)  # fmt: skip
def test_each_limit_has_its_label(
    more: dict[str, object], facts: dict[str, float], label: str
) -> None:
    assert label_of({**QUIET, **more}, **facts) == label


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({"roof_memory": 0.8, "roof_compute": 0.1}, "dram"),
        ({"spill_bytes": 64, "stack_bytes": 64, "code_w_local": 0.2}, "spills"),
        ({"spill_bytes": 0, "stack_bytes": 256, "code_w_local": 0.2}, "local-array"),
        ({"code_global_excess": 8.0, "code_w_global": 0.1, "roof_memory": 0.1}, "uncoalesced"),
        ({"code_shared_conflict": 32.0, "code_w_shared": 0.1}, "bank-conflicts"),
        ({"code_busy_fp64": 1.0}, "fp64"),
        ({"code_w_tensor": 0.1, "roof_compute": 0.3}, "tensor"),
    ],
)
def test_code_and_time_alone_give_labels_too(facts: dict[str, float], label: str) -> None:
    found = classify(facts, "code+time")
    assert found.label == label
    assert found.confidence <= 0.6  # less than counters would give


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({"parallel": 0, "cores": 8, "time_us": 900, "roof_memory": 0.1, "roof_compute": 0.0},
         "serial"),
        ({"code_w_scalar": 0.2, "code_w_packed": 0.0, "simd_lanes": 8, "roof_memory": 0.1,
          "roof_compute": 0.02}, "scalar"),
        ({"roof_memory": 0.9, "roof_compute": 0.1, "time_us": 900}, "dram"),
        ({"roof_memory": 0.1, "roof_compute": 0.1}, "latency"),
    ],
)  # fmt: skip
def test_the_cpu_has_its_own_limits(facts: dict[str, float], label: str) -> None:
    assert classify(facts, "cpu").label == label


# --- what is no answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"gpc__cycles_elapsed.max": 7.0, "SQ_WAVES": 12.0},  # another architecture's names
        dict.fromkeys(BUSY, math.nan),
        dict.fromkeys(BUSY, -1.0),
        dict.fromkeys(BUSY, 1000000000.0),
        dict.fromkeys(BUSY, "n/a"),
        {"gpu__time_duration.sum": 0.0},
    ],
)
def test_garbage_is_unknown_with_a_reason(raw: dict[str, object]) -> None:
    counters = read_counters(raw)
    found = classify(derived(counters), "counters")
    assert (found.label, found.headroom, found.confidence) == (UNKNOWN, None, 0.0)
    assert found.reason
    assert counters.problems


def test_no_kernel_profiled_is_never_success() -> None:
    for launches in ([], [(0.0, read_counters(BUSY))], [(math.nan, read_counters(BUSY))]):
        counters = combined(launches)
        assert not counters.values
        assert classify(derived(counters), "counters").label == UNKNOWN


def test_a_plan_is_judged_by_where_its_time_goes() -> None:
    short = read_counters({**QUIET, "lts__t_sectors_op_read.sum": 10.0})
    whole = combined([(1.0, short), (99.0, read_counters(BUSY))])
    assert classify(derived(whole), "counters").label == "dram"
    assert "l2_read_sectors" not in whole.values  # not known of every launch


NAMES = sorted({n for names in (*SHARES.values(), *COUNTS.values()) for n in names}
               | {STALL.format("barrier"), "noise"})  # fmt: skip
RAW = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(st.floats(), st.integers(), st.text(max_size=5), st.none(), st.booleans()),
)


@given(RAW, st.sampled_from(["", "sm_75", "sm_90a", "gfx942"]))
def test_any_counters_are_survived(raw: dict[str, object], arch: str) -> None:
    counters = read_counters(raw, arch)
    assert all(math.isfinite(v) and v >= 0 for v in counters.values.values())
    found = classify(derived(counters), "counters")
    assert (found.label == UNKNOWN) == (not found.findings)
    assert found.label != UNKNOWN or found.reason
    assert found.headroom is None or 1 <= found.headroom <= 100


FACTS = sorted(
    {n for r in shipped_table().rules for n in r.names} - set(shipped_table().thresholds)
)


@given(st.dictionaries(st.sampled_from(FACTS), st.floats()), st.sampled_from(SOURCES))
def test_any_facts_are_survived_and_stored(facts: dict[str, float], source: str) -> None:
    found = classify(facts, source)
    assert Diagnosis.from_json(found.to_json()) == found
    for finding in found.findings:
        assert 0 <= finding.strength <= 1
        assert finding.headroom is None or finding.headroom >= 1
        assert len(finding.evidence) <= MAX_EVIDENCE
        assert finding.directions


def test_a_damaged_diagnosis_is_an_unknown_one() -> None:
    assert Diagnosis.from_json({"findings": [{"label": "dram"}]}).label == UNKNOWN


# --- the table --------------------------------------------------------------------------------


def test_every_row_of_the_table_can_be_reached() -> None:
    rules = shipped_table().rules
    assert {r.group for r in rules} == {
        "memory-bandwidth", "memory-latency", "compute", "parallelism", "overhead"
    }  # fmt: skip
    for source in SOURCES:
        assert [r for r in rules if source in r.sources]
    assert all(r.evidence and r.directions and r.says.endswith(".") for r in rules)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("format = 1", "format = 9", "format must be 1"),
        ('group = "overhead"\n', "", "must have exactly the fields"),
        ('sources = ["cpu"]', 'sources = ["tpu"]', "sources must be among"),
        ('when = "local_share >= spilled"', 'when = "local_share >="', "not an expression"),
        ("\n[thresholds]", "\n[thresholds", "cannot be read"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = TABLE_FILE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "table.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecError, match=says):
        read_table(path)


def test_counters_are_one_type() -> None:
    assert isinstance(read_counters(BUSY), Counters)
    assert read_counters({"gpu__time_duration.sum": "1,500"}).duration_us == 1.5
