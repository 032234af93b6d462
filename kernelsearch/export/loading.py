"""Load a bundle in Python: every file is checked, then its kernels are called like a tuned one's.

Nothing of the search is imported, nothing is compiled, and no code of the bundle runs on the host.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelsearch.errors import BundleError, KernelSearchError
from kernelsearch.export.kernel import architecture
from kernelsearch.operator import Interface, Scalar, Tensor
from kernelsearch.records import Binary, CompileJob, Device
from kernelsearch.runtime import Choice, Kernel
from kernelsearch.targets.cuda_device import probe_device
from kernelsearch.variant import Variant, parse_variant

FORMAT = 2
MAX_MANIFEST_BYTES = 64 << 20


def load(
    folder: str | Path, dtype: str | None = None, device: Device | None = None
) -> BundleKernel:
    """Return the callable of a CUDA bundle that ``kernelsearch export`` wrote.

    Args:
        folder: the bundle.
        dtype: element type, where the bundle has several.
        device: what to pick kernels for (default: this machine's first CUDA device).

    Raises:
        BundleError: a file is missing, was changed or is no part of a bundle; or it has no kernel
            for the device.
        TargetUnavailableError: there is no CUDA device.
    """
    place = Path(folder)
    manifest = _manifest(place)
    _check_files(place, manifest)
    try:
        interface = _interface(manifest["operator"])
        entries = list(manifest["kernels"])
        known = list(dict.fromkeys(str(e["dtype"]) for e in entries))
        wanted = dtype or (known[0] if len(known) == 1 else "")
        if wanted not in known:
            raise BundleError(f"{place} has kernels for {', '.join(known)}; give one as dtype "
                              f"(got {dtype!r})")  # fmt: skip
        target = BundleTarget(device or probe_device())
        loaded = [_entry(place, e, target) for e in entries if e["dtype"] == wanted]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(
            f"{place / 'manifest.json'} is malformed ({type(error).__name__}: {error}); export it "
            "again"
        ) from error
    usable = [e for e in loaded if e is not None]
    if not usable:
        archs = sorted({i["arch"] for e in entries for i in e["images"] if i["kind"] == "cubin"})
        raise BundleError(
            f"{place} has no kernel for {target.device.name} ({target.device.arch}); it has "
            f"binaries for {', '.join(archs)}: export it again with --archs {target.device.arch}"
        )
    return BundleKernel(interface, target, wanted, usable)


class BundleTarget:
    """A device whose binaries come from a bundle instead of a compiler."""

    name = "cuda"

    def __init__(self, device: Device) -> None:
        self.device = device
        self._binaries: dict[str, Binary] = {}

    def add(self, job: CompileJob, image: bytes, symbols: Mapping[str, str]) -> None:
        """Keep the binary of a job."""
        code = hashlib.sha256(image).hexdigest()[:16]
        self._binaries[job.key] = Binary(job.key, job, image, code, dict(symbols))

    def compile(self, job: CompileJob) -> Binary:
        """Return the binary that the bundle has for a job.

        Raises:
            BundleError: it has none.
        """
        if job.key not in self._binaries:
            raise BundleError(f"the bundle has no binary of {job.name} for {job.arch}")
        return self._binaries[job.key]


class BundleKernel(Kernel):
    """The kernels of a bundle as one callable; calls are those of ``TunedKernel``.

    Among the kernels that cover a call, the order is that of the dispatch table: measured on this
    device at these sizes, at the nearest sizes, on the same compute capability, on the same family,
    then as in the manifest.
    """

    def __init__(
        self, operator: Interface, target: BundleTarget, dtype: str,
        entries: Sequence[tuple[Choice, Sequence[Mapping[str, Any]]]],
    ) -> None:  # fmt: skip
        super().__init__(operator, target, dtype, [choice for choice, _ in entries])
        self._measured = [measured for _, measured in entries]

    def __repr__(self) -> str:
        names = ", ".join(c.variant.name for c in self.choices)
        return f"<BundleKernel {self.operator.name} ({self.dtype}): {names}>"

    def order(self, sizes: Mapping[str, int]) -> list[int]:
        """Return the choices to try for a call, best first."""
        wanted = [sizes[s] for s in self.operator.symbols]
        device = self.target.device
        ranks = []
        for index, records in enumerate(self._measured):
            ranked = [_rank(device, wanted, r) for r in records]
            ranks.append((min(ranked, default=(4, 0.0)), index))
        return [index for _, index in sorted(ranks)]


def _rank(device: Device, sizes: Sequence[int], record: Mapping[str, Any]) -> tuple[int, float]:
    major, minor, _ = architecture(device.arch)
    other_major, other_minor, _ = architecture(record["arch"])
    far = math.fsum(
        (math.log1p(a) - math.log1p(b)) ** 2 for a, b in zip(sizes, record["sizes"], strict=True)
    )
    if record["device"] == device.name:
        return (0 if far == 0 else 1), far
    if (other_major, other_minor) == (major, minor):
        return 2, far
    return (3, far) if other_major == major else (4, 0.0)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BundleError(f"{path} is larger than any manifest")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(
            f"{folder} is no bundle: its manifest.json cannot be read ({error.strerror}); "
            "kernelsearch export writes one"
        ) from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged ({error}); export it again") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise BundleError(
            f"{path} must be of format {FORMAT}, that of CUDA bundles (got {found!r}); the bundle "
            "of a CPU study is a Numba file, which is used from its study"
        )
    return value


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise BundleError(f"{folder / 'manifest.json'} names no files; export it again")
    root = folder.resolve()
    for name, wanted in files.items():
        path = root / name
        if root not in path.resolve().parents:
            raise BundleError(f"{folder / 'manifest.json'} names {name!r}, outside the bundle")
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise BundleError(
                f"{folder} lacks {name} ({error.strerror}); export it again"
            ) from None
        if digest != wanted:
            raise BundleError(
                f"{path} was changed after it was exported (its SHA-256 differs); export it again"
            )


def _interface(value: Mapping[str, Any]) -> Interface:
    arguments: list[Tensor | Scalar] = []
    for argument in value["arguments"]:
        fields = {k: v for k, v in argument.items() if k != "kind"}
        if argument["kind"] == "tensor":
            arguments.append(Tensor(**{**fields, "shape": tuple(fields["shape"])}))
        else:
            arguments.append(Scalar(**fields))
    return Interface(value["name"], value["doc"], tuple(arguments))


def _entry(
    folder: Path, entry: Mapping[str, Any], target: BundleTarget
) -> tuple[Choice, Sequence[Mapping[str, Any]]] | None:
    """Return a kernel that runs on the target's device, None where it does not."""
    stem = f"kernels/{entry['id']}"
    variant = _variant(folder, stem, entry)
    params, dtype, device = dict(entry["params"]), str(entry["dtype"]), target.device
    variant.check_params(params)
    arch = _best(device.arch, [i["arch"] for i in entry["images"] if i["kind"] == "cubin"])
    if arch is None or variant.violated(params, device.facts, dtype) is not None:
        return None
    job = variant.compile_job(params, dtype, device.arch)
    if set(entry["symbols"]) != set(job.kernels):
        raise BundleError(f"{folder}: {entry['id']} names other kernels than its source")
    target.add(job, _read(folder, f"{stem}.{arch}.cubin"), entry["symbols"])
    return Choice(variant, params), list(entry["measured"])


def _variant(folder: Path, stem: str, entry: Mapping[str, Any]) -> Variant:
    try:
        variant = parse_variant(_read(folder, f"{stem}.cu").decode(), "cuda", f"{stem}.cu")
    except KernelSearchError as error:
        raise BundleError(f"{folder}: {error}; export it again") from error
    if variant.hash != entry["variant"]["hash"]:
        raise BundleError(
            f"{folder}: {stem}.cu is not the variant of the manifest; export it again"
        )
    return dataclasses.replace(variant, name=str(entry["variant"]["name"]))


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder} lacks {name} ({error.strerror}); export it again") from None


def _best(device: str, archs: Sequence[str]) -> str | None:
    """Return the newest of the architectures whose machine code runs on a device's."""
    major, minor, _ = architecture(device)
    good = []
    for arch in archs:
        own_major, own_minor, exact = architecture(arch)
        same = (own_major, own_minor) == (major, minor)
        if same or (not exact and own_major == major and own_minor <= minor):
            good.append((own_minor, exact, arch))
    return max(good)[2] if good else None
