"""The parameter search as an Optuna sampler, for studies of one's own that minimise a time."""

from __future__ import annotations

from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from kernelsearch.errors import SpecError
from kernelsearch.params import SpaceSearch
from kernelsearch.space import Space


class SpaceSampler(BaseSampler):
    """Samples valid, untried combinations of a space; other parameters are sampled at random.

    Suggest each tunable with ``trial.suggest_categorical(name, choices)``, or ask with
    ``study.ask(sampler.distributions)``. A trial that fails or is pruned counts as a failure.

    Args:
        space: the valid combinations.
        seed: of every random choice.
        method: one of ``methods.METHODS``.

    Raises:
        SpecError: (while sampling) the study has not one positive objective to minimise, or every
            valid combination has been tried.
    """

    def __init__(self, space: Space, *, seed: int = 0, method: str = "guide") -> None:
        self._search = SpaceSearch(space, seed=seed, method=method)
        self._others = RandomSampler(seed)
        self._known: set[int] = set()
        self.distributions: dict[str, BaseDistribution] = {
            n: CategoricalDistribution(c)
            for n, c in zip(space.names, space.choices, strict=True)
        }  # fmt: skip

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the tunables."""
        if study.directions != [StudyDirection.MINIMIZE]:
            raise SpecError("SpaceSampler minimises one time: create the study with "
                            "direction='minimize'")  # fmt: skip
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next combination, after learning what became of the study's trials."""
        for other in study.get_trials(deepcopy=False):
            self._learn(other)
        found = self._search.ask()
        if not found:
            raise SpecError("every valid combination has been tried: end the study")
        return found[0]

    def _learn(self, trial: FrozenTrial) -> None:
        names = self._search.space.names
        if trial.number in self._known or not all(n in trial.params for n in names):
            return
        params = {n: trial.params[n] for n in names}
        choices = zip(names, self._search.space.choices, strict=True)
        if not all(params[n] in known for n, known in choices):
            return  # of a study that had other choices: it says nothing of this space
        if not trial.state.is_finished():
            # Another process has it; of our own the search knows already.
            self._search.skip_unless_asked(params)
            return
        self._known.add(trial.number)
        if trial.state is not TrialState.COMPLETE or trial.value is None:
            self._search.tell(params, None)
        elif trial.value > 0:
            self._search.tell(params, 1.0 / trial.value)
        else:
            raise SpecError(f"trial {trial.number} took {trial.value}: a time must be positive")

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # fmt: skip
        """Return a random value of a parameter that is not of the space."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)
