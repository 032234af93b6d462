"""A target that misbehaves on request: what a worker does is written in the compile job's source.

The source is a JSON object ``{"compile": ..., "load": ..., "run": ..., "time": ...}``; each value
is a behaviour, a word with an optional argument after a blank (see ``act``). No key means: do it
right.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from kernelsearch import errors
from kernelsearch.measure import sample
from kernelsearch.records import (
    Binary,
    BufferSpec,
    CompileJob,
    Device,
    KernelFacts,
    RunReport,
    RunRequest,
    TimeReport,
    TimeRequest,
    digest,
)
from kernelsearch.shm import ALIGN, attach


def job(**behaviour: str) -> CompileJob:
    """Return a compile job whose candidate behaves as told."""
    return CompileJob("fake", json.dumps(behaviour, sort_keys=True), ("kernel",), "fake_1")


def act(behaviour: str) -> tuple[str, ...]:
    """Do what ``behaviour`` says; return words for the report."""
    verb, _, argument = behaviour.partition(" ")
    match verb:
        case "":
            return ()
        case "segv":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "exit":
            os._exit(int(argument))
        case "hang":
            while True:
                time.sleep(3600)
        case "spin":
            while True:
                pass
        case "leak":
            kept = []
            while True:
                kept.append(bytearray(b"x" * (16 << 20)))
        case "raise":
            raise getattr(errors, argument)(f"{argument} on request")
        case "sticky":
            raise errors.LaunchError("illegal address", {"sticky": True})
        case "bug":
            raise KeyError("a bug of ours, not a candidate's failure")
        case "flood":
            stream = {"stdout": sys.stdout, "stderr": sys.stderr}[argument]
            for _ in range(400):
                stream.write("x" * 65536)
            stream.flush()
        case "half":
            # A header that promises more than will ever come.
            os.write(int(sys.argv[1]), (1000).to_bytes(4, "big") + b'{"value":')
            time.sleep(3600)
        case "lie":
            body = argument.encode()
            os.write(int(sys.argv[1]), len(body).to_bytes(4, "big") + body)
            time.sleep(3600)
        case "lie_once":
            if not Path(argument).exists():
                Path(argument).write_text("")
                act("lie nonsense")
        case "huge":
            os.write(int(sys.argv[1]), (0x7FFFFFFF).to_bytes(4, "big"))
            time.sleep(3600)
        case "spawn":
            child = subprocess.Popen(["sleep", "1000"])
            Path(argument).write_text(str(child.pid))
        case "spawn_and_hang":
            act(f"spawn {argument}")
            act("hang")
        case "sleep":
            time.sleep(float(argument))
        case "count":
            with open(argument, "a") as file:
                file.write(f"{os.getpid()}\n")
        case "at_exit":
            atexit.register(Path(argument).write_text, "went by itself")
        case "stay":
            atexit.register(time.sleep, 3600)
        case "environment":
            return tuple(sorted(os.environ))
        case "facts":
            limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
            score = Path("/proc/self/oom_score_adj").read_text().strip()
            confined = int(os.environ["CONFINED_TO"]) > 1 << 28
            return (
                f"confined={confined}",
                f"core={limit}",
                f"oom={score}",
                f"session={os.getsid(0) == os.getpid()}",
            )
        case _:
            raise AssertionError(f"unknown behaviour {behaviour!r}")
    return ()


@dataclass
class FakeTarget:
    """Implements ``protocols.Target``; ``opening`` is what ``open`` does, ``probing`` ``probe``."""

    name: str = "fake"
    opening: str = ""
    probing: str = ""
    memory_bytes: int = 0
    device: Device = field(
        default_factory=lambda: Device("fake", "Fake 1", "fake_1", {"cores": 2, "warp_size": 32})
    )

    def compile(self, job: CompileJob) -> Binary:
        try:
            behaviour = json.loads(job.source)
        except ValueError as error:
            raise errors.CompileError("is not JSON", {"log": str(error)}) from error
        act(behaviour.get("compile", ""))
        return Binary(
            key=job.key, job=job, image=job.source.encode(), code_hash=digest(job.source),
            symbols={k: f"_Z{k}" for k in job.kernels}, compile_s=0.001,
            facts=(KernelFacts("kernel", registers=32, param_bytes=(8, 4)),),
        )  # fmt: skip

    def open(self) -> FakeExecutable:
        if self.memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))
        act(self.opening)
        return FakeExecutable(self.probing)


class FakeExecutable:
    """Implements ``protocols.Executable``: its kernel adds one to every byte of its inputs."""

    def __init__(self, probing: str = "") -> None:
        self._loaded: dict[str, dict[str, str]] = {}
        self._probing = probing

    def confine(self, memory_bytes: int) -> None:
        os.environ["CONFINED_TO"] = str(memory_bytes)

    def load(self, binary: Binary) -> None:
        behaviour = json.loads(binary.image)
        act(behaviour.get("load", ""))
        self._loaded[binary.key] = behaviour

    def unload(self, key: str) -> None:
        act(self._loaded.pop(key).get("unload", ""))

    def run(self, request: RunRequest) -> RunReport:
        words = act(self._loaded[request.binary].get("run", ""))
        _compute(request.buffers, request.poison)
        return RunReport(modified_inputs=words, elapsed_s=0.001)

    def time(self, request: TimeRequest) -> TimeReport:
        for contender in request.contenders:
            act(self._loaded[contender.binary].get("time", ""))
        for capture in request.captures:
            _compute(capture, 0)
        taken = sample(
            lambda who, calls: (10.0 + who) * calls, len(request.contenders), request.settings,
            request.seed,
        )  # fmt: skip
        return TimeReport(
            samples_us=taken.samples_us, end_to_end_us=(12.0,) * len(request.contenders),
            calls_per_sample=taken.calls_per_sample,
            captured_sets=(0,) * request.settings.verify_calls, cache=request.settings.cache,
            conditions={"load": 0.5},
        )  # fmt: skip

    def probe(self) -> None:
        act(self._probing)

    def ceilings(self) -> dict[str, float]:
        return {"dram_gbps": 10.0}

    def close(self) -> None:
        self._loaded.clear()


def _compute(buffers: tuple[BufferSpec, ...], poison: int) -> None:
    """Write the first input plus one into every sink, or poison where there is no input."""
    inputs = [b.source for b in buffers if b.source is not None]
    for buffer in buffers:
        if buffer.sink is None:
            continue
        contents = bytes([poison]) * buffer.nbytes
        if inputs:
            with attach(inputs[0], writable=False) as memory:
                start = inputs[0].offset % ALIGN
                contents = bytes((v + 1) % 256 for v in memory[start : start + inputs[0].nbytes])
        with attach(buffer.sink, writable=True) as memory:
            start = buffer.sink.offset % ALIGN
            memory[start : start + len(contents)] = contents
