"""Draw best-so-far curves of searches on a recorded space, with bands, by Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kernelsearch.errors import MissingExtraError, SpecError, StorageError
from kernelsearch.replay.recording import Recording
from kernelsearch.replay.simulate import Replay

RESAMPLES = 400


def plot_curves(
    results: Mapping[str, tuple[Recording, Mapping[str, Sequence[Replay]]]], path: Path
) -> None:
    """Write one panel for each space: mean share of the optimum reached, and its 95 % interval.

    Args:
        results: recording and the runs of each method, by the space's name.
        path: of the picture; its ending (``.svg``, ``.png``, ``.pdf``) says the format.

    Raises:
        MissingExtraError: Matplotlib is not installed.
        SpecError: the ending is of no known format.
        StorageError: the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError("plotting curves", "report", "matplotlib") from error
    figure, axes = pyplot.subplots(
        len(results), 1, figsize=(5, 2.6 * len(results)), squeeze=False, layout="constrained"
    )
    for axis, (name, (recording, methods)) in zip(axes[:, 0], results.items(), strict=True):
        for method, runs in methods.items():
            shares = np.array([recording.best / r.times for r in runs])
            count = np.arange(1, shares.shape[1] + 1)
            rng = np.random.default_rng(0)
            picks = rng.integers(0, len(shares), (RESAMPLES, len(shares)))
            low, high = np.quantile(shares[picks].mean(axis=1), [0.025, 0.975], axis=0)
            (line,) = axis.plot(count, shares.mean(axis=0), label=method, linewidth=1)
            axis.fill_between(count, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axis.set(title=name, xlabel="distinct evaluations", ylabel="share of the optimum")
        axis.legend(fontsize="small")
    known = figure.canvas.get_supported_filetypes()
    try:
        if path.suffix.removeprefix(".") not in known:
            raise SpecError(f"{path}: a picture's ending must be one of {', '.join(sorted(known))}")
        figure.savefig(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error})") from error
    finally:
        pyplot.close(figure)
