"""Read the state of a device that decides whether a timing can be trusted. Changes nothing."""

from __future__ import annotations

import os
import time
from typing import Any

# A question takes the driver a while, and a clock changes slowly: answers are kept for so long.
CLOCK_AGE_S = 5e-3

_REASONS = (
    "GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "HwSlowdown", "SyncBoost",
    "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "DisplayClockSetting",
)  # fmt: skip


class DeviceMonitor:
    """NVML's view of one device; where NVML is missing it says so instead of failing."""

    def __init__(self, pci_bus_id: str) -> None:
        self._handle: Any = None
        self._nvml: Any = None
        self.missing = ""
        self._mhz, self._read_at = 0.0, 0.0
        try:
            import pynvml
        except ImportError:
            self.missing = (
                "the package 'nvidia-ml-py' is not installed, so clocks were not read; "
                "install it with: pip install 'kernelsearch[cuda]'"
            )
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        except pynvml.NVMLError as error:
            self.missing = f"NVML does not answer ({error}), so clocks were not read"
            return
        self._nvml = pynvml

    def snapshot(self) -> dict[str, Any]:
        """Return clocks, throttle reasons, temperature and power, as far as they are offered."""
        if self._nvml is None:
            return {"nvml": self.missing}
        nvml, handle = self._nvml, self._handle
        state: dict[str, Any] = {}
        self._read(state, "sm_mhz", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        self._read(state, "mem_mhz", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM)
        self._read(state, "power_mw", nvml.nvmlDeviceGetPowerUsage, handle)
        self._read(
            state, "temperature_c", nvml.nvmlDeviceGetTemperature, handle,
            nvml.NVML_TEMPERATURE_GPU,
        )  # fmt: skip
        self._read(state, "throttle_bits", nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        bits = state.pop("throttle_bits", None)
        if bits is not None:
            state["throttle"] = [
                n for n in _REASONS if bits & getattr(nvml, f"nvmlClocksThrottleReason{n}", 0)
            ]
        return state

    def sm_mhz(self) -> float:
        """Return the processors' clock, read at most ``CLOCK_AGE_S`` ago (0: not known)."""
        if self._nvml is None:
            return 0.0
        now = time.perf_counter()
        if now - self._read_at > CLOCK_AGE_S:
            state: dict[str, Any] = {}
            kind = self._nvml.NVML_CLOCK_SM
            self._read(state, "mhz", self._nvml.nvmlDeviceGetClockInfo, self._handle, kind)
            self._mhz, self._read_at = float(state.get("mhz", 0)), now
        return self._mhz

    def other_processes(self) -> dict[str, Any]:
        """Return how many processes besides this one compute on the device."""
        if self._nvml is None:
            return {}
        state: dict[str, Any] = {}
        self._read(
            state, "processes", self._nvml.nvmlDeviceGetComputeRunningProcesses, self._handle
        )
        found = state.get("processes")
        if found is None:
            return {}
        return {"other_processes": sum(p.pid != os.getpid() for p in found)}

    def _read(self, state: dict[str, Any], key: str, query: Any, *args: Any) -> None:
        try:
            state[key] = query(*args)
        except self._nvml.NVMLError:
            # Virtual machines and small devices offer only part of this; missing stays missing.
            return


def driver_version() -> str:
    """Return the installed driver's version, or an empty string."""
    try:
        import pynvml
    except ImportError:
        return ""
    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""
    return version.decode() if isinstance(version, bytes) else str(version)
