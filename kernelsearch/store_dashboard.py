"""Make Optuna's mirror of a study readable in optuna-dashboard, and serve it there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelsearch.errors import ArgumentError, MissingExtraError, StudyError
from kernelsearch.store_base import make_folder, os_error
from kernelsearch.store_optuna import optuna_storage

FOLDER = "artifacts"
ATTACHED = "dashboard:artifacts:"


@dataclass(frozen=True, slots=True)
class Described:
    """What a dashboard shows beside a variant's trial: a note in Markdown, and a file."""

    note: str
    file_name: str
    text: str


class Dashboard:
    """The mirror of one study.

    Args:
        url: of the ledger.
        study: its name.
        folder: of the study; artifacts are kept in it.

    Raises:
        MissingExtraError: optuna-dashboard is not installed.
        StorageError: Optuna cannot open the storage.
    """

    def __init__(self, url: str, study: str, folder: Path) -> None:
        try:
            import optuna_dashboard  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                "`kernelsearch dashboard`", "dashboard", "optuna-dashboard"
            ) from error
        self._study, self._folder = study, folder / FOLDER
        self._storage = optuna_storage(url)

    def describe(self, variants: Mapping[str, Described]) -> int:
        """Give the trials of variants (by hash) their notes and files; return how many there are.

        Raises:
            StudyError: the study has no mirror yet.
        """
        import optuna
        from optuna_dashboard import save_note

        try:
            study = optuna.load_study(study_name=self._study, storage=self._storage)
        except KeyError as error:
            raise StudyError(
                f"Optuna's mirror of the study {self._study!r} is not written yet: that is done "
                "when a run ends or is stopped"
            ) from error
        make_folder(self._folder)
        count = 0
        for trial in study.get_trials(deepcopy=False):
            described = variants.get(str(trial.user_attrs.get("hash")))
            if described is not None:
                count += 1
                save_note(optuna.trial.Trial(study, trial._trial_id), described.note)
                self._attach(study._study_id, trial._trial_id, described)
        return count

    def _attach(self, study: int, trial: int, described: Described) -> None:
        """Make a text an artifact of a trial.

        Optuna's own way is closed to trials that are finished; the dashboard also finds what is
        noted at the study under this key.
        """
        data = described.text.encode("utf-8", "replace")
        name = hashlib.sha256(data).hexdigest()[:32]
        path = self._folder / name
        try:
            if not path.exists():
                path.write_bytes(data)
        except OSError as error:
            raise os_error("write the artifact", path, error) from error
        meta = {"artifact_id": name, "filename": described.file_name, "mimetype": "text/plain",
                "encoding": "utf-8"}  # fmt: skip
        self._storage.set_study_system_attr(study, f"{ATTACHED}{trial}:{name}", json.dumps(meta))

    def serve(self, host: str, port: int) -> None:
        """Serve until interrupted.

        Raises:
            ArgumentError: the port cannot be listened on.
        """
        from optuna.artifacts import FileSystemArtifactStore
        from optuna_dashboard import run_server

        try:
            run_server(self._storage, host, port, FileSystemArtifactStore(self._folder))
        except OSError as error:
            raise ArgumentError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
            ) from error
