"""What a bundle's launcher costs the host in each call, above the driver's own launch.

PYTHONPATH=. python benchmarks/bundle_overhead.py -o bundle_overhead.json

Runs without a GPU, on the tests' fake driver, whose launch does next to nothing: the difference
is the launcher's own work (choice, checks, plan). Processor time, best of seven rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from large import commit

from kernelsearch.operators_io import load_operator
from kernelsearch.resources import include_folder, template_paths
from kernelsearch.targets.cuda_device import architecture_device
from kernelsearch.variant import load_variant
from tests.support.bundle_build import fake_driver, stand_in, write

OPERATORS = ("rms_norm", "softmax", "stencil_2d", "matrix_mul", "spmv_csr")
CALLS, ROUNDS, SIZE = 200_000, 7, 4096
PROGRAM = """
#include "{name}.hpp"
#include <algorithm>
#include <ctime>
static double now() {{
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e9 * t.tv_sec + t.tv_nsec;
}}
int main() {{
  kernelsearch::{name}::float32_call call;
  {fill}
  const auto status = kernelsearch::{name}::launch(call);
  if (!status) return std::puts(status.message().c_str()), 1;
  const auto& driver = kernelsearch::Driver::get();
  kernelsearch::LaunchConfig config{{}};
  double launcher = 1e18, raw = 1e18;
  for (int round = 0; round < {rounds}; ++round) {{
    double begin = now();
    for (int i = 0; i < {calls}; ++i) kernelsearch::{name}::launch(call);
    launcher = std::min(launcher, (now() - begin) / {calls});
    begin = now();
    for (int i = 0; i < {calls}; ++i) driver.launch(&config, nullptr, nullptr, nullptr);
    raw = std::min(raw, (now() - begin) / {calls});
  }}
  std::printf("%.1f %.1f\\n", launcher, raw);
}}
"""


def overhead(name: str, folder: Path, driver: Path) -> tuple[int, float, float]:
    """Return how many kernels the bundle has, and nanoseconds of its call and of a raw launch."""
    operator, facts = load_operator(name), architecture_device("sm_90a").facts
    variants = [load_variant(p, include_folder()) for p in template_paths(name, "cuda")]
    kernels = [
        stand_in(v, v.default_params(facts, "float32"), "float32")
        for v in variants if "float32" in v.dtypes
    ]  # fmt: skip
    bundle = write(folder / name, operator, kernels)
    fill = [
        f"call.{t.name} = reinterpret_cast<decltype(call.{t.name})>(std::uintptr_t{{{4096 << i}}});"
        for i, t in enumerate(operator.tensors)
    ]
    fill += [f"call.{s} = {SIZE};" for s in operator.symbols]
    source = PROGRAM.format(name=name, fill="\n  ".join(fill), rounds=ROUNDS, calls=CALLS)
    (folder / f"{name}.cpp").write_text(source)
    program = folder / f"{name}.program"
    subprocess.run(["g++", "-std=c++17", "-O2", f"-I{bundle}", str(folder / f"{name}.cpp"), "-o",
                    str(program), "-ldl", "-pthread"], check=True)  # fmt: skip
    environment = {"LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_QUIET": "1",
                   "FAKE_CUDA_LOG": os.devnull,
                   "FAKE_CUDA_SIZES": str(folder / f"{name}.sizes")}  # fmt: skip
    done = subprocess.run([str(program)], env={**os.environ, **environment}, capture_output=True,
                          text=True, check=True)  # fmt: skip
    launcher, raw = map(float, done.stdout.split())
    return len(kernels), launcher, raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    output: Path | None = parser.parse_args().output
    rows = []
    with tempfile.TemporaryDirectory() as place:
        driver = fake_driver(Path(place))
        for name in OPERATORS:
            kernels, launcher, raw = overhead(name, Path(place), driver)
            rows.append({"operator": name, "kernels": kernels, "call_ns": launcher, "raw_ns": raw})
            print(f"{name:12} {kernels:2} kernels: {launcher:7.0f} ns a call, {raw:4.0f} ns raw")
    if output is not None:
        output.write_text(json.dumps({
            "device": "none (fake driver)", "machine": platform.processor() or platform.machine(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(),
            "unit": "ns of processor time a call", "rows": rows,
        }, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
