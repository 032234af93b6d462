"""The contract of a ledger: what a study keeps, who may write it, and when it is durable."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from kernelsearch.codec import BROKEN, plain, unplain, unseal
from kernelsearch.errors import StorageError
from kernelsearch.records import Candidate, Evaluation, Status, Timing, VariantRecord, digest

# Of the storage: 1 had no checksums. An older one is migrated when a study is opened.
FORMAT = 2
BUSY_TIMEOUT_S = 30.0
# What a folder holds beside its database once a study has begun: proof that it is not a new one.
SETTINGS_COPY = "settings.json"
# What file systems without hard links answer.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
# fmt: off
_NETWORK = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "smbfs", "beegfs", "ceph", "afs", "9p",
    "fuse.sshfs", "glusterfs", "fuse.glusterfs", "panfs", "wekafs", "orangefs", "pvfs2", "virtiofs",
})
# fmt: on


class Claim(StrEnum):
    """What came of asking for a candidate."""

    CLAIMED = "claimed"
    DONE = "done"
    TAKEN = "taken"


class Recorded(StrEnum):
    """What became of an evaluation handed to the ledger."""

    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Owner:
    """One process that claims work: enough to tell, on its own host, whether it still lives."""

    id: str
    host: str
    pid: int
    started: str

    @staticmethod
    def here() -> Owner:
        """Return a new owner for this process."""
        host, pid = _host(), os.getpid()
        name = re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())[:40]
        return Owner(f"{name}-{pid}-{secrets.token_hex(6)}", host, pid, _started(pid))

    def is_dead(self) -> bool:
        """Tell whether this owner certainly no longer runs (False where that cannot be known)."""
        return self.host == _host() and _started(self.pid) != self.started


@dataclass(frozen=True, slots=True)
class Event:
    """A small fact of a study's life, in the order it was written."""

    kind: str
    data: Mapping[str, Any]
    created: float


@dataclass(frozen=True, slots=True)
class Contents:
    """All that makes up a study, to be written at once.

    Args:
        settings: as ``write_settings`` takes them.
        variants: oldest first.
        evaluations: of one key the oldest revision first.
        events: in the order they were written.
    """

    settings: Mapping[str, Any]
    variants: Sequence[VariantRecord]
    evaluations: Sequence[Evaluation]
    events: Sequence[Event]


class Stopwatch:
    """Tells how long a heartbeat has not changed, where the clock that wrote it was set back.

    Such a heartbeat lies in the future, and its age says nothing. This process's own clock does,
    from the moment it first saw that heartbeat.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def age_s(self, owner: str, beat: float, now: float) -> float:
        """Return the age of a heartbeat in seconds.

        Args:
            owner: whose it is.
            beat: when it was written.
            now: the present time, of the same clock.
        """
        if beat <= now + 1.0:
            return now - beat
        known, since = self._seen.get(owner, (0.0, 0.0))
        if known != beat:
            self._seen[owner] = (beat, time.monotonic())
            return 0.0
        return time.monotonic() - since


def evaluation_key(candidate: Candidate, device: str, settings: str) -> str:
    """Return the ledger's key of a candidate on a device under settings."""
    return digest(candidate.variant, candidate.params, candidate.dtype, device, settings)


def key_of(evaluation: Evaluation) -> str:
    """Return the ledger's key of an evaluation."""
    return evaluation_key(evaluation.candidate, evaluation.device, evaluation.settings)


class Ledger(ABC):
    """The truth of a study: variants, claims, evaluations and events.

    Whatever a method has returned from is on disk and survives ``kill -9``. Every method may raise
    ``StorageError``. Usable from several threads; any number of processes may have one open.

    Cursors are opaque strings; "" is the beginning.
    """

    url: str
    study: str
    folder: Path

    @abstractmethod
    def read_settings(self) -> dict[str, Any]:
        """Return the settings the study was created with ({} before ``write_settings``)."""

    @abstractmethod
    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings once; writing the same again is allowed, others are refused."""

    @abstractmethod
    def add_variant(self, record: VariantRecord) -> bool:
        """Add a variant; False if its hash is known already."""

    @abstractmethod
    def variants(self) -> list[VariantRecord]:
        """Return all variants, oldest first."""

    @abstractmethod
    def claim(self, key: str, owner: Owner, lease_s: float) -> Claim:
        """Try to take the candidate with evaluation key ``key`` for ``owner``.

        A claim holds until it is recorded or released, or until its owner is dead or has given no
        heartbeat for ``lease_s``; then the next one to ask takes it over.
        """

    @abstractmethod
    def heartbeat(self, owner: Owner) -> None:
        """Say that ``owner`` lives: prolongs all its claims."""

    @abstractmethod
    def release(self, key: str, owner: Owner) -> bool:
        """Give a claim back unfinished; False if ``owner`` does not hold it."""

    @abstractmethod
    def claims(self) -> dict[str, str]:
        """Return the claims that are held: evaluation key to owner id."""

    @abstractmethod
    def record(self, evaluation: Evaluation, owner: Owner) -> Recorded:
        """Commit an evaluation and end its claim, atomically.

        The first evaluation of a key stays; a second is refused and reported as ``DUPLICATE``. An
        ``infrastructure_error`` says nothing of the candidate: it only ends the claim.
        """

    @abstractmethod
    def revise(self, key: str, evaluation: Evaluation) -> None:
        """Append a newer revision of a recorded evaluation; the older ones stay."""

    @abstractmethod
    def evaluations(self, since: str = "") -> tuple[list[Evaluation], str]:
        """Return what was recorded after cursor ``since``, and the new cursor.

        Revisions are among them: of two evaluations with one key the later one counts.
        """

    @abstractmethod
    def evaluation(self, key: str) -> Evaluation | None:
        """Return the newest revision of an evaluation."""

    @abstractmethod
    def add_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Append a small JSON-able fact."""

    @abstractmethod
    def events(self, since: str = "") -> tuple[list[Event], str]:
        """Return the events after cursor ``since``, and the new cursor."""

    @abstractmethod
    def write_all(self, contents: Contents) -> None:
        """Write a whole study into this ledger, which must be new (to repair another one)."""

    @abstractmethod
    def close(self) -> None:
        """Free files and connections."""

    def confirm(self, key: str, timings: Sequence[Timing]) -> Evaluation:
        """Append a revision of an ok evaluation with timings taken again in a fresh process."""
        from dataclasses import replace

        known = self.evaluation(key)
        if known is None or not known.ok:
            state = "is not recorded" if known is None else f"has status {known.status}"
            raise StorageError(
                f"study {self.study!r}: only a recorded ok evaluation can be confirmed; "
                f"{key} {state}; record it first"
            )
        confirmed = replace(known, timings=tuple(timings), confirmed=True)
        self.revise(key, confirmed)
        return confirmed

    def put_blob(self, data: bytes) -> str:
        """Store bytes under their SHA-256, durably, and return it."""
        name = hashlib.sha256(data).hexdigest()
        path = self._blob_path(name)
        try:
            if not path.exists():
                make_folder(path.parent)
                write_durably(path, data)
        except OSError as error:
            raise os_error("write the blob", path, error) from error
        return name

    def get_blob(self, name: str) -> bytes:
        """Return the bytes stored under ``name``."""
        path = self._blob_path(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise os_error("read the blob", path, error) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise StorageError(
                f"blob {path} is damaged: its content must have the hash in its name; "
                "restore it from a copy"
            )
        return data

    def _blob_path(self, name: str) -> Path:
        if len(name) != 64 or not set(name) <= set("0123456789abcdef"):
            raise StorageError(f"a blob's name must be a SHA-256 in hexadecimal (got {name!r})")
        return self.folder / "blobs" / name[:2] / name

    @contextlib.contextmanager
    def kept_alive(self, owner: Owner, every_s: float) -> Iterator[None]:
        """Send heartbeats of ``owner`` from a thread while the body runs.

        A heartbeat that fails is tried again: the lease runs out by itself if that goes on.
        """
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(every_s):
                with contextlib.suppress(StorageError):
                    self.heartbeat(owner)

        self.heartbeat(owner)
        thread = threading.Thread(target=beat, name="kernelsearch-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def is_final(evaluation: Evaluation) -> bool:
    """Tell whether an evaluation says something of its candidate."""
    return evaluation.status is not Status.INFRASTRUCTURE_ERROR


def dumps(data: Mapping[str, Any]) -> str:
    """Return free-form data as canonical JSON."""
    return json.dumps(plain(dict(data)), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str, where: str) -> dict[str, Any]:
    """Undo ``dumps``, also where the text was sealed.

    Raises:
        StorageError: the text is damaged.
    """
    inner = unseal(text, where)
    try:
        found = unplain(json.loads(inner))
        if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
            raise TypeError(f"it must be a JSON object, not {type(found).__name__}")
    except BROKEN as error:
        raise damaged(where, str(error)) from error
    return found


def damaged(where: str, why: str) -> StorageError:
    """Return the error for something stored that cannot be read."""
    return StorageError(
        f"{where} is damaged ({' '.join(why.split())}); restore it from a copy, or save what is "
        "intact with `kernelsearch repair`"
    )


def without_secrets(text: str) -> str:
    """Return a text with the credentials of all URLs in it masked.

    Also of URLs that are written wrongly: what stands between ``//`` and ``@`` after a colon, and
    the values of query parameters that are named like secrets.
    """
    # Greedy: a password may hold "@" and "/", and the last "@" is the one that ends it.
    text = re.sub(r"(//[^\s/:@]*|:[^\s/:@]+):\S*(?=@)", r"\1:***", text)
    return re.sub(
        r"(?i)([?&;\s'\"](?:[a-z_]*(?:passw|pwd|secret|token|key|credential)[a-z_]*)=)[^&;\s'\"]*",
        r"\1***", text,
    )  # fmt: skip


# --- files --------------------------------------------------------------------------------------


def os_error(action: str, path: Path, error: OSError) -> StorageError:
    """Return a ``StorageError`` that says what failed, where, and what to do."""
    remedies = {
        errno.ENOSPC: f"the disk is full{free_space(path)}: free space there, then resume the "
        "study",
        errno.EDQUOT: f"the disk quota is used up{free_space(path)}: free space there, then resume "
        "the study",
        errno.EROFS: "the file system is read-only: use a study folder you can write to",
        errno.EACCES: "permission is missing: use a study folder you can write to",
        errno.EPERM: "permission is missing: use a study folder you can write to",
        errno.ENOENT: "it does not exist: check the path, or create the study first",
        errno.ENOTDIR: "a part of the path is a file: choose another study folder",
        errno.EISDIR: "it is a folder: choose another path",
        errno.EIO: "the device reports an error: check the disk",
    }
    remedy = remedies.get(error.errno or 0, "check the study folder")
    return StorageError(f"cannot {action} {path} ({error.strerror or error}); {remedy}")


def free_space(path: Path) -> str:
    """Return how much space is left where a path lies, as part of a sentence ("" if unknown)."""
    for place in (path, *path.parents):
        try:
            return f" ({shutil.disk_usage(place).free / 1e6:.3g} MB free in {place})"
        except FileNotFoundError:
            continue
        except OSError:
            break
    return ""


def make_folder(path: Path) -> None:
    """Create a folder and its parents, durably."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes, *, exclusive: bool = False) -> bool:
    """Write a whole file so that it is either there complete, or not there at all.

    Args:
        path: the file.
        data: its content.
        exclusive: do nothing and return False if the file exists.
    """
    fd, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            # A hard link is the one rename that fails if the name exists, also on NFS.
            try:
                os.link(name, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                # No hard links here; two that write at the very same moment: the last one stays.
                if path.exists():
                    return False
                os.replace(name, path)
        else:
            os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    sync_folder(path.parent)
    return True


def file_system(path: Path) -> str:
    """Return the type of the file system a path lies on ("" where that is unknown)."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    real = path.resolve()
    best, kind = "", ""
    for line in lines:
        parts = line.split(" ")
        point = parts[1].replace("\\040", " ")
        covers = point == str(real) or Path(point) in real.parents
        if covers and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind


def is_network_file_system(path: Path) -> bool:
    """Tell whether a path lies on a file system that several machines share."""
    return file_system(path) in _NETWORK


# --- identity of processes ----------------------------------------------------------------------


def _host() -> str:
    """Name the pid namespace of this process, anew at every boot.

    Containers of one machine share the boot id but not the namespace; a pid means nothing outside.
    """
    parts = [socket.gethostname()]
    for read in (_boot_id, _pid_namespace):
        with contextlib.suppress(OSError):
            parts.append(read())
    return "/".join(parts)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:13]


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _started(pid: int) -> str:
    """Return the start time of a process ("" if there is none): pids are used again."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        return _started_without_proc(pid)
    except OSError:
        return ""
    rest = text.rpartition(")")[2].split()
    # A zombie runs no more; nobody may have waited for it.
    return "" if rest[0] in ("Z", "X") else rest[19]


def _started_without_proc(pid: int) -> str:  # pragma: no cover - not Linux
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "running"
