"""The commands that make, check and use a study again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from kernelsearch.report.collect import Report


def commands(report: Report) -> list[tuple[str, str]]:
    """Return (what for, command line), the whole search first."""
    folder = shlex.quote(report.folder)
    found = [
        ("search again, in a new folder", tune_command(report.settings)),
        ("verify and time the claims again", f"kernelsearch audit {folder}"),
        ("print the winner's source", f"kernelsearch show {folder} --source"),
        ("export it for a build", f"kernelsearch export {folder} -o {report.operator}-bundle"),
        ("search on", f"kernelsearch resume {folder}"),
    ]
    return found if report.result is not None else [found[0], found[4]]


def tune_command(settings: Mapping[str, Any]) -> str:
    """Return the command line that asks for the same search."""
    words = ["kernelsearch", "tune", str(settings["operator"]), "--target", settings["target"],
             "--dtype", settings["dtype"]]  # fmt: skip
    if settings["data"]:
        words += ["--data", settings["data"]]
    elif settings["workload_set"] not in ("", "given"):
        words += ["--workloads", settings["workload_set"]]
    else:
        words += ["--workloads", ";".join(_sizes(w) for w in settings["workloads"])]
    for path in settings["variants"]:
        words += ["--variant", path]
    if not settings["templates"]:
        words.append("--no-templates")
    for name in settings["proposers"] or ("none",):
        words += ["--proposer", name]
    if "llm" in settings["proposers"]:
        words += ["--model", "MODEL"]
    words += ["--selector", settings["selector"], "--objective", settings["objective"],
              "--seed", str(settings["seed"]), "--cache", settings["timing"]["cache"]]  # fmt: skip
    return " ".join(shlex.quote(w) for w in words)


def _sizes(workload: Mapping[str, Any]) -> str:
    text = ",".join(f"{s}={workload['sizes'][s]}" for s in workload["symbols"])
    drawn = workload["distribution"]
    return text if drawn == "default" else f"{text}@{drawn}"
