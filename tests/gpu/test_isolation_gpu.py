"""A confined CUDA worker still does all of its work, and can do little else."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest

from kernelsearch.errors import CandidateError, TargetUnavailableError
from kernelsearch.records import LaunchPlan, RunRequest
from kernelsearch.sandbox import refuse_calls
from kernelsearch.targets.cuda import CudaTarget
from kernelsearch.worker import IsolatedRunner
from tests.gpu.cuda_support import SCALE, buffers, job, scale_plan

pytestmark = pytest.mark.gpu
N = 1 << 20
CRASH = "__global__ void scale(elem_t* y, const elem_t*, long long, float) { y[1ll << 40] = 0; }"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    try:
        return CudaTarget(cache_folder=tmp_path_factory.mktemp("programs"))
    except TargetUnavailableError as error:
        pytest.skip(str(error))


def test_a_confined_worker_runs_crashes_and_is_probed(target):
    runner = IsolatedRunner(target)
    try:
        assert "driver_calls" in runner.confinement()
        good = target.compile(job(SCALE, "scale", arch=target.device.arch))
        bad = target.compile(job(CRASH, "scale", arch=target.device.arch))
        x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
        specs, views = buffers({"x": x}, {"y": ("float32", (N,))}, 0)
        plan: LaunchPlan = scale_plan(N)
        for binary in (good, bad):
            runner.load(binary, 60)
        runner.run(RunRequest(good.key, plan, tuple(specs)), 60)
        first = np.array(views["y"])
        with pytest.raises(CandidateError):
            runner.run(RunRequest(bad.key, plan, tuple(specs)), 60)
        views["y"][:] = 0
        runner.run(RunRequest(good.key, plan, tuple(specs)), 60)
        assert (np.array(views["y"]) == first).all()
        assert runner.starts == 2
        assert runner.ceilings()["dram_gbps"] > 0
    finally:
        runner.close()


def test_the_driver_filter_refuses_networks_and_programs(target):
    # In a process of its own: it cannot be undone.
    pid = os.fork()
    if pid == 0:
        refused = 0
        refuse_calls()
        for attempt in (
            lambda: socket.socket(socket.AF_INET), lambda: os.execv("/bin/true", ["true"]),
        ):  # fmt: skip
            try:
                attempt()
            except PermissionError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
