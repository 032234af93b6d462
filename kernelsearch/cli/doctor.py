"""``doctor``: say what this machine can do, and what is missing."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from kernelsearch import sandbox
from kernelsearch.ceilings import with_ceilings
from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import coloured, emit_json, out, table
from kernelsearch.errors import KernelSearchError
from kernelsearch.home import cache_folder, ensure_folder, home, lock_path
from kernelsearch.locks import DeviceLock
from kernelsearch.records import Device
from kernelsearch.targets.choose import choose_target
from kernelsearch.versions import versions
from kernelsearch.worker import IsolatedRunner

EXTRAS = {"cuda": "cuda.core", "llm": "anthropic", "dashboard": "optuna_dashboard",
          "scipy": "scipy"}  # fmt: skip

_WITHOUT = {
    "seccomp": "CPU kernels are held by the allow-list, limits and a process of their own only",
    "landlock": "files are kept from CPU kernels by the allow-list and the call filter only",
}


@app.command()
def doctor(
    calibrate: Annotated[bool, typer.Option(
        "--calibrate", help="Measure the devices' rates again.")] = False,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Say what this machine can do: targets, devices, compilers, folders."""
    report: dict[str, Any] = {
        "versions": versions(), "extras": {k: _importable(v) for k, v in EXTRAS.items()},
        "home": _home(), "targets": {n: _target(n, calibrate) for n in ("cpu", "cuda")},
        "compile": _compile_only(), "isolation": sandbox.offered(),
    }  # fmt: skip
    if json_:
        emit_json(report)
        return
    _print(report)


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _home() -> dict[str, Any]:
    try:
        ensure_folder(home())
    except KernelSearchError as error:
        return {"path": str(home()), "ok": False, "why": str(error)}
    return {"path": str(home()), "ok": True}


def _target(name: str, calibrate: bool) -> dict[str, Any]:
    try:
        target = choose_target(name, cache_folder())
        device = target.device
        if calibrate:
            for old in cache_folder().glob(f"ceilings-{device.key}.json"):
                os.unlink(old)
            runner = IsolatedRunner(target, DeviceLock(lock_path(device.key)))
            try:
                device = with_ceilings(device, cache_folder(), runner.ceilings)
            finally:
                runner.close()
    except KernelSearchError as error:
        return {"ok": False, "why": str(error)}
    return {"ok": True, **_device(device)}


def _device(device: Device) -> dict[str, Any]:
    return {
        "device": device.name, "arch": device.arch, "driver": device.driver,
        "facts": dict(device.facts), "ceilings": dict(device.ceilings),
    }  # fmt: skip


def _compile_only() -> dict[str, Any]:
    """Whether NVRTC compiles here, device or not."""
    if not _importable("cuda.core"):
        return {"ok": False, "why": "NVRTC needs: pip install 'kernelsearch[cuda]'"}
    from kernelsearch.records import CompileJob

    try:
        target = choose_target("cuda", cache_folder(), arch="sm_90a")
        binary = target.compile(CompileJob(
            "cuda", "__global__ void probe(float* x) { x[threadIdx.x] *= 2.0f; }", ("probe",),
            "sm_90a", "probe.cu", (("defines", ()), ("dtype", "float32")),
        ))  # fmt: skip
    except KernelSearchError as error:
        return {"ok": False, "why": str(error)}
    return {"ok": True, "arch": "sm_90a", "registers": binary.facts[0].registers}


def _print(report: dict[str, Any]) -> None:
    rows = table("", "what", "state", "detail")
    for name, target in report["targets"].items():
        if target["ok"]:
            detail = f"{target['device']} ({target['arch']}; {target['driver']})"
            rows.add_row(f"target {name}", coloured("ready", "green"), detail)
            ceilings = ", ".join(f"{k} {v:.4g}" for k, v in target["ceilings"].items())
            if ceilings:
                rows.add_row("", "", ceilings)
        else:
            rows.add_row(f"target {name}", coloured("not here", "yellow"), target["why"])
    compile_ = report["compile"]
    state = coloured("ready", "green") if compile_["ok"] else coloured("not here", "yellow")
    rows.add_row("NVRTC (no GPU needed)", state, compile_.get("why", "compiles for sm_90a"))
    for layer, offer in report["isolation"].items():
        state = coloured("ready", "green") if offer else coloured("not here", "yellow")
        rows.add_row(f"isolation by {layer}", state, offer or _WITHOUT[layer])
    where = report["home"]
    state = coloured("writable", "green") if where["ok"] else coloured("not writable", "red")
    rows.add_row("home", state, where["path"])
    have = [k for k, v in report["extras"].items() if v]
    rows.add_row("extras", "", ", ".join(have) or "none installed")
    known = report["versions"]
    rows.add_row("versions", "", ", ".join(f"{k} {v}" for k, v in known.items()))
    out.print(rows)
