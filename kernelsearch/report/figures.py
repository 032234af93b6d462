"""The figures of a report for papers: PNG and SVG, drawn by Matplotlib from the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsearch.errors import MissingExtraError, StorageError
from kernelsearch.report.charts import LOG_FROM, UNITS, By, intensity, rate, rates, reaches
from kernelsearch.report.collect import Report
from kernelsearch.report.importance import Parameters, parameters
from kernelsearch.report.words import clean, plain, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 300
# A column of a two-column paper, inches.
SIZE = (3.5, 2.6)
STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.3, "svg.fonttype": "none", "svg.hashsalt": "kernelsearch",
    "legend.frameon": False,
}  # fmt: skip
# Colours that are told apart by everybody, and on grey paper.
BLUE, GREEN, GREY = "#0072b2", "#009e73", "#888888"
BEHIND = {"facecolor": "white", "alpha": 0.7, "lw": 0, "pad": 1}


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Write every figure the study has data for, as ``NAME.png`` and ``NAME.svg``.

    Raises:
        MissingExtraError: Matplotlib is not installed.
        StorageError: the folder cannot be written to.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("--figures", "report", "matplotlib") from error

    written = []
    with matplotlib.rc_context(STYLE), _folder(folder):
        for name, draw in _drawings(report):
            figure = Figure(figsize=SIZE, layout="constrained")
            draw(figure.add_subplot())
            for suffix in ("png", "svg"):
                path = folder / f"{name}.{suffix}"
                # Without a date the same study gives the same file.
                stamp = {"Date": None} if suffix == "svg" else {}
                figure.savefig(path, dpi=DPI, metadata=stamp)
                written.append(path)
    return written


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write figures to {folder} ({error.strerror}); name another folder"
        ) from error


def _drawings(report: Report) -> Iterator[tuple[str, Callable[[Axes], None]]]:
    if any(e.speedup for e in report.evaluations):
        kinds: list[By] = ["evaluations", "time", *(["money"] if report.costs.usd else [])]  # type: ignore[list-item]
        for by in kinds:
            yield f"best-so-far-{by}", lambda axes, by=by: _best_so_far(axes, report, by)  # type: ignore[misc]
    if rates(report) and report.winner is not None and any(map(intensity, report.workloads)):
        yield "roofline", lambda axes: _roofline(axes, report)
    if report.path and any(w.sol_us for w in report.workloads):
        yield "winners-way", lambda axes: _way(axes, report)
    if report.migrations:
        yield "bottlenecks", lambda axes: _bottlenecks(axes, report)
    for number, one in enumerate(parameters(report), 1):
        if one.method:
            yield f"importance-{number}", lambda axes, one=one: _importance(axes, report, one)  # type: ignore[misc]


def _best_so_far(axes: Axes, report: Report, by: By) -> None:
    right = [e for e in report.evaluations if e.speedup]
    axes.scatter([reaches(e, by) for e in right], [e.speedup or 0.0 for e in right], s=3, c=GREY,
                 alpha=0.5, linewidths=0, label="right candidates", rasterized=True)  # fmt: skip
    steps = [report.evaluations[n] for n in report.incumbents]
    end = max(reaches(e, by) for e in report.evaluations)
    heights = [e.speedup or 0.0 for e in steps]
    axes.step([*(reaches(e, by) for e in steps), end], [*heights, heights[-1]], where="post",
              color=GREEN, label="best so far")  # fmt: skip
    if max(heights) / min(e.speedup or 1.0 for e in right) > LOG_FROM:
        axes.set_yscale("log")
    axes.set_xlabel(UNITS[by])
    axes.set_ylabel("speed-up")
    axes.legend()


def _roofline(axes: Axes, report: Report) -> None:
    limits = rates(report)
    assert limits is not None
    bandwidth, arithmetic = limits
    places = [i for w in report.workloads if (i := intensity(w))]
    ridge = arithmetic / bandwidth
    low, high = min(*places, ridge) / 3, max(*places, ridge) * 3
    axes.plot([low, ridge, high], [bandwidth * low, arithmetic, arithmetic], color="black")
    for workload in report.workloads:
        at = intensity(workload)
        elites = [r for v in report.elites if (r := rate(workload, v))]
        way = [r for n in report.path if (r := rate(workload, report.variants[n]))]
        if at is None or not way:
            continue
        axes.plot([at] * len(elites), elites, "o", mfc="none", mec=GREY, ms=3)
        axes.plot([at] * len(way), way, "-o", color=BLUE, ms=3)
        axes.plot([at], [way[-1]], "o", color=GREEN, ms=5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte of compulsory traffic")
    axes.set_ylabel("operations a second")


def _way(axes: Axes, report: Report) -> None:
    count = len(report.path)
    for workload in report.workloads:
        points = [
            (place, 100 * workload.sol_us / time)
            for place, number in enumerate(report.path)
            if workload.sol_us and (time := report.variants[number].times_us.get(workload.key))
        ]
        axes.plot([p for p, _ in points], [y for _, y in points], "-o", ms=3,
                  label=_plain_label(workload.key))  # fmt: skip
    axes.axhline(100, color="black", lw=1)
    axes.set_yscale("log")
    axes.set_ylabel("% of speed of light")
    names = [short(plain(v.mutation or v.name)) for v in (report.variants[n] for n in report.path)]
    axes.set_xticks(range(count), names, rotation=60, ha="right", fontsize=6, parse_math=False)
    axes.legend(fontsize=6)


def _bottlenecks(axes: Axes, report: Report) -> None:
    before = sorted({m.before for m in report.migrations})
    after = sorted({m.after for m in report.migrations})
    counts = [[0.0] * len(after) for _ in before]
    for step in report.migrations:
        row, column = before.index(step.before), after.index(step.after)
        counts[row][column] = step.count
        axes.text(column, row, f"{step.count}\n{step.gain:.2f}x", ha="center", va="center",
                  fontsize=6, bbox=BEHIND)  # fmt: skip
    axes.imshow(counts, cmap="Blues", aspect="auto")
    axes.grid(False)
    names: dict[str, Any] = {"parse_math": False, "fontsize": 6}
    axes.set_xticks(range(len(after)), [clean(plain(n)) for n in after], rotation=30,
                    ha="right", **names)  # fmt: skip
    axes.set_yticks(range(len(before)), [clean(plain(n)) for n in before], **names)
    axes.set_xlabel("bottleneck of the child")
    axes.set_ylabel("of the parent")


def _importance(axes: Axes, report: Report, one: Parameters) -> None:
    slices = [s for s in one.slices if s.importance is not None][::-1]
    axes.barh(range(len(slices)), [s.importance or 0.0 for s in slices], color=BLUE)
    axes.set_yticks(range(len(slices)), [clean(s.name) for s in slices], parse_math=False)
    axes.set_xlabel(f"importance ({one.method})")
    axes.set_title(short(report.variants[one.variant].name), fontsize=7, parse_math=False)


def _plain_label(text: str) -> str:
    """Return a text for a legend, which reads mathematics between dollar signs."""
    return clean(text).replace("$", r"\$")
