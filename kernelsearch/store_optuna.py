"""Mirror the ledger into Optuna studies at the same URL, for dashboards; never the truth.

The study ``<study>`` holds a trial a variant, ``<study>/<variant hash>`` a trial a candidate.
Writing a trial takes Optuna longer than measuring some kernels, so a thread of its own does it;
``flush`` waits until all is there. What a killed process did not write is added at the next start:
hand everything over once more, a trial that exists is not written twice.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsearch.errors import StorageError, StudyError
from kernelsearch.records import Evaluation, ParamValue, VariantRecord, geometric_mean
from kernelsearch.store_base import key_of, make_folder, os_error, without_secrets

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

MESSAGE_CHARS = 300


def optuna_storage(url: str) -> BaseStorage:
    """Open the Optuna storage at a ledger's URL (a mirror; never the truth).

    Raises:
        StorageError: Optuna cannot open it.
    """
    import optuna
    import sqlalchemy as sa

    from kernelsearch.store_tables import database_error

    where = without_secrets(url)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url.startswith("journal:"):
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        from kernelsearch.store_journal import journal_path

        path = journal_path(url)
        try:
            make_folder(path.parent)
            _end_last_line(path)
            return JournalStorage(JournalFileBackend(str(path)))
        except OSError as error:
            raise os_error("open the Optuna journal", path, error) from error
    arguments = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    failure: Exception | None = None
    for attempt in range(5):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=arguments)
        except (sa.exc.DBAPIError, optuna.exceptions.StorageInternalError) as error:
            # Two processes that create the tables at once trip over each other; the second look
            # finds them.
            failure = error
            if not _may_pass(_driver_error(error)):
                break
            time.sleep(0.2 * (attempt + 1))
        except (sa.exc.SQLAlchemyError, ImportError, RuntimeError, ValueError) as error:
            reason = without_secrets(" ".join(str(error).split()))
            raise StudyError(
                f"Optuna cannot use the storage {where} ({reason}); check the URL, the driver's "
                "package and the version of Optuna"
            ) from error
    assert failure is not None
    raise database_error(
        "open Optuna's tables in", where, _folder_of(url), _driver_error(failure)
    ) from failure


def _end_last_line(path: Path) -> None:
    """Cut off the torn last line that a killed process has left in Optuna's journal.

    Optuna reads past it, but would write the next record onto its end, and then read neither.
    """
    from optuna.storages.journal import JournalFileSymlinkLock

    if not path.exists():
        return
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        with open(path, "r+b") as file:
            data = file.read()
            if data and not data.endswith(b"\n"):
                file.truncate(data.rfind(b"\n") + 1)
                os.fsync(file.fileno())
    finally:
        lock.release()


def _driver_error(error: Exception) -> BaseException:
    """Return what SQLAlchemy said, where Optuna has wrapped it in an error of its own."""
    from sqlalchemy.exc import SQLAlchemyError

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, SQLAlchemyError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _may_pass(error: BaseException) -> bool:
    """Tell whether it is worth asking again: not where SQLite cannot open or write the file."""
    name = str(getattr(getattr(error, "orig", None), "sqlite_errorname", "") or "")
    passing = ("SQLITE_ERROR", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CONSTRAINT")
    return not name or name.startswith(passing)


def _folder_of(url: str) -> Path:
    return Path(url.partition("///")[2] or ".").parent


@dataclass(frozen=True, slots=True)
class VariantSummary:
    """How a variant stands, for its trial in the outer study.

    Args:
        record: the variant.
        status: of its best evaluation, or of its last one where none is ok.
        best_us: geometric mean over workloads of its best evaluation's times.
        speedup: the objective of its best evaluation.
        evaluations: how many candidates of it were evaluated.
        finished: nothing is expected to change: its trial is completed.
    """

    record: VariantRecord
    status: str = ""
    best_us: float | None = None
    speedup: float | None = None
    evaluations: int = 0
    finished: bool = False


class OptunaMirror:
    """Writes trials to the Optuna storage from a thread of its own."""

    def __init__(self, url: str, study: str) -> None:
        self.url, self.study = url, study
        self._where = without_secrets(url)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._storage: BaseStorage | None = None
        self._studies: dict[str, int] = {}
        self._keys: dict[str, set[str]] = {}
        self._outer: dict[str, FrozenTrial] = {}
        self._written: dict[str, VariantSummary] = {}

    def evaluation(
        self,
        evaluation: Evaluation,
        tunables: Mapping[str, tuple[ParamValue, ...]],
        objective: float | None,
    ) -> None:
        """Have an evaluation mirrored in the study of its variant."""
        self._submit(lambda: self._write_evaluation(evaluation, tunables, objective))

    def variant(self, summary: VariantSummary) -> None:
        """Have a variant's trial created or brought up to date."""
        self._submit(lambda: self._write_variant(summary))

    def flush(self, timeout_s: float = 120.0) -> None:
        """Wait until everything handed over is in the storage.

        Raises:
            StorageError: something could not be written. The ledger is not touched by that.
        """
        if self._thread is not None:
            done = threading.Event()
            self._submit(done.set)
            deadline = time.monotonic() + timeout_s
            while not done.wait(0.05):
                if not self._thread.is_alive():
                    break
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"the Optuna mirror in {self._where} is not written after {timeout_s:g} s; "
                        "the results are safe in the ledger: resume to complete it"
                    )
        if self._failure is not None:
            raise StorageError(
                f"the Optuna mirror in {self._where} could not be written "
                f"({self._reason(self._failure)}); the results are safe in the ledger: resume to "
                "complete it"
            ) from self._failure

    def _reason(self, failure: Exception) -> str:
        """Return one sentence: SQLAlchemy's own errors quote the statement and its data."""
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError

        from kernelsearch.store_tables import database_error

        folder = _folder_of(self.url)
        if isinstance(failure, SQLAlchemyError | OptunaError):
            failure = database_error("write to", self._where, folder, _driver_error(failure))
        elif isinstance(failure, OSError):
            failure = os_error("write to", folder, failure)
        return without_secrets(" ".join(str(failure).split()))

    def close(self) -> None:
        """Write what is left and end the thread; failures stay unsaid (see ``flush``)."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _submit(self, job: Callable[[], None]) -> None:
        if self._failure is not None:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="kernelsearch-mirror", daemon=True
            )
            self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        import sqlalchemy as sa
        from optuna.exceptions import OptunaError

        while (job := self._jobs.get()) is not None:
            try:
                job()
            except (OptunaError, sa.exc.SQLAlchemyError, StorageError, StudyError, OSError,
                    ValueError, KeyError) as error:  # fmt: skip
                # A mirror that fails ends; the study goes on. ``flush`` tells.
                self._failure = error
                return

    def _open(self, name: str) -> tuple[BaseStorage, int]:
        """Return the storage and the id of a study, created where it is missing."""
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        if self._storage is None:
            self._storage = optuna_storage(self.url)
        storage = self._storage
        if name not in self._studies:
            try:
                self._studies[name] = storage.create_new_study([StudyDirection.MAXIMIZE], name)
            except DuplicatedStudyError:
                self._studies[name] = storage.get_study_id_from_name(name)
        return storage, self._studies[name]

    def _write_evaluation(
        self,
        evaluation: Evaluation,
        tunables: Mapping[str, tuple[ParamValue, ...]],
        objective: float | None,
    ) -> None:
        from optuna.distributions import BaseDistribution, CategoricalDistribution
        from optuna.trial import TrialState, create_trial

        name = f"{self.study}/{evaluation.candidate.variant}"
        storage, study_id = self._open(name)
        if name not in self._keys:
            trials = storage.get_all_trials(study_id, deepcopy=False)
            self._keys[name] = {str(t.user_attrs.get("key")) for t in trials}
        key = key_of(evaluation)
        if key in self._keys[name]:
            return
        params = evaluation.candidate.values
        distributions: dict[str, BaseDistribution] = {
            n: CategoricalDistribution(tunables[n]) for n in params
        }
        attrs: dict[str, Any] = {
            "key": key, "status": str(evaluation.status), "dtype": evaluation.candidate.dtype,
            "message": evaluation.message[:MESSAGE_CHARS],
        }  # fmt: skip
        if evaluation.ok:
            attrs["time_us"] = geometric_mean(list(evaluation.times_us().values()))
        failed = objective is None
        trial = create_trial(
            state=TrialState.FAIL if failed else TrialState.COMPLETE, value=objective,
            params=params, distributions=distributions, user_attrs=attrs,
        )  # fmt: skip
        storage.create_new_trial(study_id, trial)
        self._keys[name].add(key)

    def _write_variant(self, summary: VariantSummary) -> None:
        from optuna.trial import TrialState, create_trial

        storage, study_id = self._open(self.study)
        if not self._outer:
            # Of several trials of one variant the last counts: the others are superseded.
            for known in storage.get_all_trials(study_id, deepcopy=False):
                self._outer[str(known.user_attrs.get("hash"))] = known
        record = summary.record
        if self._written.get(record.hash) == summary:
            return
        attrs = {
            "hash": record.hash, "name": record.name, "parent": record.parent,
            "proposer": record.proposer, "mutation": record.mutation, "status": summary.status,
            "best_us": summary.best_us, "speedup": summary.speedup,
            "evaluations": summary.evaluations,
        }  # fmt: skip
        state = TrialState.RUNNING
        if summary.finished:
            state = TrialState.FAIL if summary.speedup is None else TrialState.COMPLETE
        value = summary.speedup if state is TrialState.COMPLETE else None
        trial = self._outer.get(record.hash)
        if trial is not None and not trial.state.is_finished():
            for name, content in attrs.items():
                if trial.user_attrs.get(name) != content:
                    storage.set_trial_user_attr(trial._trial_id, name, content)
            if state.is_finished():
                values = None if value is None else [value]
                storage.set_trial_state_values(trial._trial_id, state, values)
        elif trial is None or (
            summary.finished and any(trial.user_attrs.get(n) != c for n, c in attrs.items())
        ):
            if trial is not None:
                # A resumed study bettered the variant; Optuna never changes a finished trial.
                attrs["supersedes"] = trial.number
            fresh = create_trial(state=state, value=value, user_attrs=attrs)
            trial_id = storage.create_new_trial(study_id, fresh)
            self._outer[record.hash] = storage.get_trial(trial_id)
            self._written[record.hash] = summary
            return
        self._outer[record.hash] = storage.get_trial(trial._trial_id)
        self._written[record.hash] = summary
