"""``kernelsearch.load`` takes a whole bundle or says what is wrong with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernelsearch
from kernelsearch.errors import BundleError, TargetUnavailableError
from kernelsearch.export.kernel import Measured
from kernelsearch.export.loading import load
from kernelsearch.operators_io import load_operator
from kernelsearch.records import Device
from kernelsearch.resources import include_folder, template_paths
from kernelsearch.targets.cuda_device import architecture_device
from kernelsearch.variant import load_variant
from tests.support.bundle_build import stand_in, write

OPERATOR = load_operator("rms_norm")
DEVICE = architecture_device("sm_90a")


def measured(device: str, arch: str, *sizes: int) -> Measured:
    return Measured(device, arch, sizes, 1.0, 1.0, 1.0)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    kernels = []
    records = {
        "naive": [measured("GPU A", "sm_90a", 4, 64), measured("GPU C", "sm_80", 9, 9)],
        "two_pass": [measured("GPU A", "sm_90a", 4096, 4096), measured("GPU B", "sm_100a", 1, 1)],
    }
    for path in template_paths("rms_norm", "cuda"):
        variant = load_variant(path, include_folder())
        if variant.name in records:
            params = variant.default_params(DEVICE.facts, "float32")
            kernels.append(stand_in(
                variant, params, "float32", ("sm_80", "sm_90a"), records[variant.name]
            ))  # fmt: skip
    return write(tmp_path / "bundle", OPERATOR, kernels)


def named(name: str, arch: str = "sm_90a") -> Device:
    return dataclasses.replace(architecture_device(arch), name=name)


def test_a_whole_bundle_is_taken(bundle: Path) -> None:
    kernel = load(bundle, device=named("GPU A"))
    assert [c.variant.name for c in kernel.choices] == ["naive", "two_pass"]
    assert "rms_norm" in repr(kernel)
    assert kernel.operator.arguments == OPERATOR.arguments
    choice = kernel.choices[0]
    job = choice.variant.compile_job(choice.params, "float32", "sm_90a")
    assert kernel.target.compile(job).image == b"\x7fELFsm_90a"
    older = load(bundle, device=named("RTX", "sm_86"))
    job = choice.variant.compile_job(choice.params, "float32", "sm_86")
    assert older.target.compile(job).image == b"\x7fELFsm_80"
    with pytest.raises(BundleError, match="no binary"):
        older.target.compile(choice.variant.compile_job(choice.params, "float32", "sm_80"))


@pytest.mark.parametrize(("device", "arch", "sizes", "first"), [
    ("GPU A", "sm_90a", (4, 64), 0), ("GPU A", "sm_90a", (8, 64), 0),
    ("GPU A", "sm_90a", (2048, 4096), 1), ("GPU X", "sm_90a", (2048, 4096), 1),
    ("GPU B", "sm_86", (5, 5), 1), ("GPU X", "sm_86", (5, 5), 0), ("GPU X", "sm_80", (1, 1), 0),
])  # fmt: skip
def test_the_order_is_that_of_the_dispatch_table(
    bundle: Path, device: str, arch: str, sizes: tuple[int, int], first: int
) -> None:
    kernel = load(bundle, device=named(device, arch))
    assert kernel.order({"rows": sizes[0], "cols": sizes[1]})[0] == first


def rewrite(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest; its own hashes do not cover it."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_every_damaged_file_is_noticed(bundle: Path) -> None:
    for path in sorted(p for p in bundle.rglob("*") if p.is_file()):
        data = path.read_bytes()
        for bad in (data[:-1], b"", data + b" ", bytes([data[0] ^ 1]) + data[1:]):
            if path.name == "manifest.json" and bad == data + b" ":
                continue
            path.write_bytes(bad)
            # Without its last byte, a manifest is no JSON; one that still is must say the same.
            if path.name == "manifest.json" and bad == data[:-1]:
                continue
            with pytest.raises(BundleError, match=r"export|bundle"):
                load(bundle, device=DEVICE)
        path.unlink()
        with pytest.raises(BundleError, match=r"lacks|no bundle"):
            load(bundle, device=DEVICE)
        path.write_bytes(data)
    load(bundle, device=DEVICE)


def _forge(manifest: dict[str, Any], bundle: Path) -> None:
    source = next((bundle / "kernels").glob("naive*.cu"))
    source.write_text(source.read_text().replace("eps", "eps + 0 * eps"))
    manifest["files"][f"kernels/{source.name}"] = hashlib.sha256(source.read_bytes()).hexdigest()


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda m: m.update(format=1), "CPU study"),
    (lambda m: m.update(format=99), "format"),
    (lambda m: m.update(files={}), "no files"),
    (lambda m: m.pop("kernels"), "malformed"),
    (lambda m: m.update(kernels=7), "malformed"),
    (lambda m: m["kernels"][0].pop("params"), "malformed"),
    (lambda m: m["kernels"][0]["variant"].update(hash="0" * 16), "not the variant"),
    (lambda m: m["kernels"][0]["symbols"].update(other="x"), "other kernels"),
    (lambda m: m["kernels"][0].update(id="../../etc/passwd"), "lacks"),
    (lambda m: m["files"].update({"../secret": "0"}), "outside"),
    (lambda m: m["operator"]["arguments"][0].update(kind="tensor", surprise=1), "malformed"),
])  # fmt: skip
def test_what_a_manifest_may_not_say(
    bundle: Path, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    rewrite(bundle, change)
    with pytest.raises(BundleError, match=sentence):
        load(bundle, device=DEVICE)


def test_a_forged_source_is_not_the_variant(bundle: Path) -> None:
    rewrite(bundle, lambda m: _forge(m, bundle))
    with pytest.raises(BundleError, match="not the variant"):
        load(bundle, device=DEVICE)


def test_other_devices_types_and_places(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no kernel for .*sm_120a"):
        load(bundle, device=named("RTX", "sm_120a"))
    with pytest.raises(BundleError, match="float32"):
        load(bundle, dtype="bfloat16", device=DEVICE)
    for place in (tmp_path / "none", bundle / "manifest.json"):
        with pytest.raises(BundleError, match="no bundle"):
            load(place, device=DEVICE)
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(TargetUnavailableError, match="CUDA"):
            kernelsearch.load(bundle)


def test_nothing_of_the_search_is_imported(bundle: Path) -> None:
    code = (
        "import sys, kernelsearch\n"
        "from kernelsearch.targets.cuda_device import architecture_device\n"
        f"kernelsearch.load({str(bundle)!r}, device=architecture_device('sm_90a'))\n"
        "print(*{n.split('.')[0] for n in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numba", "optuna", "typer", "rich", "networkx", "sqlalchemy", "anthropic"}
