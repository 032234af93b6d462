"""The inbox: variants written by a person or another program, and the request they answer.

``write_request`` puts a readable question into ``<study>/inbox/REQUEST.md``. Answers are variant
files in the same folder. A file stays there until the study has recorded it, so that nothing is
lost if the study is killed in between; then it moves to ``taken/``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kernelsearch.errors import StorageError, VariantError
from kernelsearch.operator import Operator
from kernelsearch.propose.context import context
from kernelsearch.propose.texts import prompt_text
from kernelsearch.protocols import ProposalRequest
from kernelsearch.records import Proposal
from kernelsearch.variant import LANGUAGES, MAX_SOURCE_BYTES, Variant, load_variant

INBOX = "inbox"
TAKEN = "taken"
REFUSED = "refused"
REQUEST = "REQUEST.md"
_SUFFIX = {language: suffix for suffix, language in LANGUAGES.items()}


class InboxProposer:
    """Picks up variant files from ``<folder>/inbox``.

    A file that is no valid variant of the study's operator moves to ``refused/``, with the reason
    beside it. Reading files is this proposer's whole job; it changes nothing else.

    Args:
        folder: the study's folder.
        settle_s: a file younger than this may still be being written, and is left for later.
    """

    name = "inbox"

    def __init__(self, folder: Path, settle_s: float = 1.0) -> None:
        self.inbox = folder / INBOX
        self.settle_s = settle_s

    def propose(self, request: ProposalRequest) -> Sequence[Proposal]:
        """Return the files that are not recorded yet, oldest first."""
        found: list[Proposal] = []
        offered: set[str] = set()
        for path in self._waiting(request.parent.language):
            variant = self._read(path, request.operator)
            if variant is None:
                continue
            if variant.hash in request.known:
                self._move(path, TAKEN, variant.hash)
                continue
            if len(found) < request.count and variant.hash not in offered:
                offered.add(variant.hash)
                found.append(Proposal(
                    source=variant.source, parent=request.parent.hash, proposer="inbox",
                    mutation=path.stem, rationale=variant.doc,
                ))  # fmt: skip
        return found

    def acknowledge(self, hashes: Sequence[str]) -> None:
        """Move the files of recorded variants away at once (otherwise the next call does it)."""
        for language in LANGUAGES.values():
            for path in self._waiting(language):
                try:
                    variant = load_variant(path)
                except VariantError:
                    continue
                if variant.hash in hashes:
                    self._move(path, TAKEN, variant.hash)

    def _waiting(self, language: str) -> list[Path]:
        if not self.inbox.is_dir():
            return []
        now = time.time()
        ages: list[tuple[float, Path]] = []
        for path in self.inbox.glob(f"*{_SUFFIX[language]}"):
            # A link could lead to any file of this machine.
            if path.name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            changed = path.stat().st_mtime
            if now - changed >= self.settle_s:
                ages.append((changed, path))
        return [p for _, p in sorted(ages)]

    def _read(self, path: Path, operator: Operator) -> Variant | None:
        try:
            if path.stat().st_size > MAX_SOURCE_BYTES:
                raise VariantError(f"is larger than {MAX_SOURCE_BYTES} bytes", str(path))
            variant = load_variant(path)
            variant.check_against(operator)
        except VariantError as error:
            self._refuse(path, str(error))
            return None
        return variant

    def _refuse(self, path: Path, reason: str) -> None:
        moved = self._move(path, REFUSED, f"{time.time_ns():x}")
        if moved is not None:
            moved.with_name(moved.name + ".txt").write_text(reason + "\n", encoding="utf-8")

    def _move(self, path: Path, folder: str, mark: str) -> Path | None:
        """Move a file away under a name of its own; None if another process was first."""
        place = self.inbox / folder
        target = place / f"{path.stem}-{mark}{path.suffix}"
        try:
            place.mkdir(exist_ok=True)
            os.replace(path, target)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"inbox: {path} cannot be moved to {place} ({error.strerror}); "
                "make the study's folder writable"
            ) from error
        return target


def write_request(folder: Path, request: ProposalRequest) -> Path:
    """Write the question for the next variant to ``<folder>/inbox/REQUEST.md``; return its path.

    Raises:
        StorageError: the folder cannot be written.
    """
    inbox = folder / INBOX
    path = inbox / REQUEST
    try:
        inbox.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=inbox, prefix=".request-", delete=False
        ) as file:
            file.write(request_text(request))
        os.replace(file.name, path)
    except OSError as error:
        raise StorageError(
            f"inbox: {path} cannot be written ({error.strerror}); make the folder writable"
        ) from error
    return path


def request_text(request: ProposalRequest) -> str:
    """Return the Markdown text of a request: what a model is told, and how to hand in an answer."""
    told = context(request)
    head = f"# Wanted: a faster variant of {request.operator.name}\n"
    parts = [text for _, text in (*told.stable, *told.changing)]
    return "\n\n".join([head, *parts, prompt_text("coder").strip(), _hand_in(request)])


def _hand_in(request: ProposalRequest) -> str:
    suffix = _SUFFIX[request.parent.language]
    return "\n".join([
        "## How to hand it in", "",
        "Write the answer to a Markdown file and give it to `kernelsearch tell`; or put whole "
        f"variant files ending in `{suffix}` into the study's `{INBOX}` folder, under names of "
        "your choice.", "",
        "Write to another name first and rename when the file is complete. A file that is taken "
        f"moves to `{TAKEN}/` once its variant is recorded; one that cannot be used moves to "
        f"`{REFUSED}/`, with the reason beside it.", "",
    ])  # fmt: skip
