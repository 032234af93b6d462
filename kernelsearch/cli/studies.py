"""Find and open stored studies for commands that name one."""

from __future__ import annotations

from pathlib import Path

from kernelsearch.cli.trust import require_trust
from kernelsearch.errors import StudyError, UnknownNameError
from kernelsearch.home import cache_folder, studies_folder
from kernelsearch.operator import Operator
from kernelsearch.operators_io import find_operator, load_operator
from kernelsearch.protocols import Target
from kernelsearch.settings import StudySettings
from kernelsearch.study import StoredStudy, Study, read_study
from kernelsearch.targets.choose import choose_target
from kernelsearch.user_data import with_data

SHORT_HASH = 6


def study_folders() -> list[Path]:
    """Return the folders of stored studies, latest change first."""
    folder = studies_folder()
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if _is_study(p)]
    return sorted(found, key=lambda p: -p.stat().st_mtime)


def _is_study(path: Path) -> bool:
    # The copy of the settings outlives the database: what is lost is said, not overlooked.
    names = ("study.db", "study.db-wal", "settings.json", "study.journal.ledger")
    return path.is_dir() and any((path / n).exists() for n in names)


def find_study(text: str) -> Path:
    """Return the folder of a study given by folder or by (a beginning of its) name.

    Raises:
        StudyError: the name is ambiguous. UnknownNameError: there is no such study.
    """
    path = Path(text).expanduser()
    if path.is_dir() and _is_study(path):
        return path.absolute()
    known = study_folders()
    named = [p for p in known if p.name.startswith(text)]
    exact = [p for p in named if p.name == text]
    if len(exact or named) == 1:
        return (exact or named)[0]
    if named:
        raise StudyError(f"{text!r} may be any of {', '.join(p.name for p in named)}; say more")
    if path.is_dir():
        raise StudyError(
            f"the folder {text} holds no study; `kernelsearch list --studies` lists the known ones"
        )
    remedy = "(see `kernelsearch list --studies`)"
    if not known:
        remedy = "yet: begin one with `kernelsearch tune OPERATOR`, or name its folder"
    raise UnknownNameError("study", text, [p.name for p in known], remedy)


def study_operator(folder: Path, trust: bool) -> tuple[Operator, StudySettings]:
    """Return the operator and the settings of a stored study.

    Raises:
        StudyError: it needs an operator that is not there any more.
    """
    ledger, stored = read_study(folder)
    ledger.close()
    settings = StudySettings.from_json(stored["settings"])
    path = find_operator(settings.operator)
    require_trust(path, trust)
    operator = load_operator(path)
    if settings.data:
        operator = with_data(operator, Path(settings.data))
    return operator, settings


def open_study(folder: Path, trust: bool, target: Target | None = None) -> Study:
    """Open a stored study on this machine's device."""
    operator, settings = study_operator(folder, trust)
    target = target or choose_target(settings.target, cache_folder())
    return Study.load(folder, operator, target.device)


def chosen_variant(stored: StoredStudy, text: str | None) -> str:
    """Return the hash of a variant given by name, hash or its beginning; None: winner, or best.

    Raises:
        UnknownNameError: there is no such variant, or several. StudyError: nothing is right yet.
    """
    archive = stored.archive
    if text is None:
        result, best = stored.result(), archive.best()
        if result is not None and archive.has_variant(result.variant):
            return result.variant
        if best is not None:
            return best.candidate.variant
        raise StudyError(
            f"the study in {stored.folder} has no right candidate yet; name a variant "
            f"(`kernelsearch show {stored.folder}` lists them)"
        )
    records = archive.variants()
    for matches in (
        [v for v in records if text in (v.name, v.hash)],
        [v for v in records if len(text) >= SHORT_HASH and v.hash.startswith(text)],
    ):
        if len({v.hash for v in matches}) == 1:
            return matches[0].hash
        if matches:
            raise StudyError(
                f"several variants are called {text!r}; give one's hash: "
                f"{', '.join(v.hash for v in matches)}"
            )
    raise UnknownNameError("variant", text, [v.name for v in records])
