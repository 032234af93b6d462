"""Tune CUDA files as people write them, with rules and Optuna alone; how much faster do they get?

    python benchmarks/imported.py --budget 40s -o studies/results/h200_imported.json

Needs a GPU and the extras ``cuda`` and ``import``. Each file of the tests' corpus is imported as it
is and tuned at its saturating size by a process of its own; the baseline is the original's kernel
with the block size of its source.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from large import ROOT, commit

CORPUS = ROOT / "tests" / "data" / "cuda_import"
FILES = (
    "tiled_matmul", "csr_spmv", "stencil_3d", "conv2d_halo", "softmax_rows", "layernorm_block",
    "kernel_only_2d", "two_pass_reduce", "nbody_struct4", "constant_filter", "dot_atomic",
    "grid_from_device",
)  # fmt: skip


def tune(name: str, options: argparse.Namespace, folder: Path) -> dict:
    """Import and tune one file; return the result, or the error."""
    started = time.monotonic()
    command = [sys.executable, "-m", "kernelsearch"]
    imported = subprocess.run(
        [*command, "import", str(CORPUS / f"{name}.cu"), "-o", str(folder / name), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(imported.stdout or "{}")
    if imported.returncode:
        return {"file": name, "error": answer.get("error", {}).get("message", imported.stderr)}
    try:
        tuned = subprocess.run(
            [*command, "tune", answer["operator"], "--target", "cuda", "--budget", options.budget,
             "--json", "--folder", str(folder / name / "study")],
            capture_output=True, text=True, check=False, timeout=options.deadline,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"file": name, "error": f"took longer than {options.deadline} s"}
    result = json.loads(tuned.stdout or "{}")
    if tuned.returncode:
        message = result.get("error", {}).get("message", tuned.stderr[-2000:])
        return {"file": name, "error": message}
    kept = ("speedup", "low", "high", "variant_name", "params", "workloads", "candidates",
            "statuses", "verified", "examined", "device")  # fmt: skip
    return {
        "file": name, "seconds": time.monotonic() - started, **{k: result[k] for k in kept},
    }  # fmt: skip


def main() -> None:
    """Run all files and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--deadline", type=float, default=180.0, help="seconds for one file")
    parser.add_argument("--folder", type=Path, default=Path("imported_studies"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("files", nargs="*", default=FILES)
    options = parser.parse_args()
    rows = []
    for name in options.files:
        rows.append(tune(name, options, options.folder))
        row = rows[-1]
        print(name, row.get("error") or f"{row['speedup']:.2f}x {row['variant_name']}", flush=True)
        good = [r["speedup"] for r in rows if "speedup" in r]
        mean = math.exp(sum(map(math.log, good)) / len(good)) if good else None
        document = {
            "what": "imported CUDA files, tuned by rules and Optuna", "budget": options.budget,
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(),
            "geometric_mean": mean, "files": rows,
        }  # fmt: skip
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"geometric mean {document['geometric_mean']} over {len(good)} of {len(rows)} files")


if __name__ == "__main__":
    main()
