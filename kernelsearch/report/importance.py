"""Which parameters matter: Optuna's importances, and speed-ups over the values of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelsearch.records import ParamValue
from kernelsearch.report.collect import EvaluationRow, Report, VariantRow

# With fewer right candidates an importance is a guess.
LEAST = 8
SHOWN = 3
SEED = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """One parameter: its values in order, and (value, speed-up) of each right candidate."""

    name: str
    importance: float | None
    values: tuple[ParamValue, ...]
    points: tuple[tuple[ParamValue, float], ...]


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the candidates of one variant say of its parameters, the most important first.

    ``method`` names how importances were estimated; "" where there are too few candidates.
    """

    variant: int
    candidates: int
    method: str
    slices: tuple[Slice, ...]


def parameters(report: Report) -> list[Parameters]:
    """Return the parameters of the winner and of the best variants that have some."""
    order = [report.variants[report.winner]] if report.winner is not None else []
    order += [v for v in report.elites if v.number != report.winner]
    found: list[Parameters] = []
    for variant in order:
        if len(found) < SHOWN and (one := _parameters(report, variant)) is not None:
            found.append(one)
    return found


def _parameters(report: Report, variant: VariantRow) -> Parameters | None:
    rows = [r for r in report.evaluations if r.variant == variant.number and r.speedup]
    names = [n for n in variant.params if len({r.params.get(n) for r in rows}) > 1]
    if not names:
        return None
    method, weights = _importances(rows, names)
    slices = []
    for name in names:
        points = tuple((r.params[name], r.speedup) for r in rows if r.speedup and name in r.params)
        values = tuple(sorted({v for v, _ in points}, key=lambda v: (isinstance(v, str), v)))
        slices.append(Slice(name, weights.get(name), values, points))
    slices.sort(key=lambda s: (-(s.importance or 0.0), s.name))
    return Parameters(variant.number, len(rows), method, tuple(slices))


def _importances(
    rows: Sequence[EvaluationRow], names: Sequence[str]
) -> tuple[str, dict[str, float]]:
    """Return how, and the share of the scatter of log speed-up that each parameter explains."""
    if len(rows) < LEAST:
        return "", {}
    import math

    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.importance import get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    whole = [r for r in rows if all(n in r.params for n in names)]
    choices = {n: CategoricalDistribution(sorted({r.params[n] for r in whole}, key=str))
               for n in names}  # fmt: skip
    study = optuna.create_study(direction="maximize")
    study.add_trials([
        optuna.create_trial(
            params={n: r.params[n] for n in names}, distributions=dict(choices),
            value=math.log(r.speedup or 1.0),
        )
        for r in whole
    ])  # fmt: skip
    method, evaluator = _evaluator()
    found = get_param_importances(study, evaluator=evaluator, params=list(names))
    return method, {str(k): float(v) for k, v in found.items()}


def _evaluator() -> tuple[str, Any]:
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    try:
        return "fANOVA", FanovaImportanceEvaluator(seed=SEED)
    except ImportError:  # it needs scikit-learn
        return "PED-ANOVA", PedAnovaImportanceEvaluator()
