"""The command line: every command once, and a sentence with exit code 2 for what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Command

TUNE = ("tune", "rms_norm", "--target", "cpu", "--workloads", "rows=16,cols=64", "--proposer",
        "none", "--budget", "2")  # fmt: skip


def test_tune_show_export_resume_list_clean(command: Command, tmp_path: Path) -> None:
    tuned = command(*TUNE, "--json")
    assert tuned.code == 0, tuned.err
    folder = tuned.json["folder"]
    assert tuned.json["speedup"] > 0
    shown = command("show", folder, "--json")
    assert shown.json["result"]["variant"] == tuned.json["variant"]
    assert command("show", folder).out.count("rms_norm") >= 1
    assert "kernelsearch" in command("show", folder, "--source").out
    name = Path(folder).name
    assert command("list", "--studies", "--json").json["studies"][0]["name"] == name
    assert "rms_norm" in command("list", "--studies").out
    bundle = tmp_path / "bundle"
    assert command("export", name, "-o", bundle).code == 0
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["operator"]["name"] == "rms_norm"
    assert set(manifest["files"]) < {p.name for p in bundle.iterdir()}
    again = command("export", name, "-o", bundle)
    assert again.code == 2
    assert "--overwrite" in again.err
    more = command("resume", name, "--budget", "1", "--json")
    assert more.json["candidates"] == tuned.json["candidates"] + 1
    asked = command("ask", name)
    assert "Wanted" in asked.out
    listed = command("clean", "--studies", "--dry-run", "--json")
    assert folder in listed.json["paths"]
    assert Path(folder).is_dir()
    assert command("clean", "--studies", "--yes").code == 0
    assert not Path(folder).exists()


def test_a_person_reads_tables(command: Command) -> None:
    tuned = command(*TUNE)
    assert tuned.code == 0
    assert "over naive" in tuned.out
    assert "kernelsearch show" in tuned.out
    assert "baseline" in tuned.err


def test_new_writes_an_operator_that_tunes(command: Command, tmp_path: Path) -> None:
    made = command("new", "mine", "-o", tmp_path, "--json")
    assert made.code == 0
    text = (tmp_path / "mine.py").read_text().replace("1 << 24", "5000")
    (tmp_path / "mine.py").write_text(text)
    tuned = command("tune", tmp_path / "mine.py", "--variant", tmp_path / "mine_naive.py",
                    "--target", "cpu", "--budget", "2", "--json")  # fmt: skip
    assert tuned.code == 0, tuned.err
    assert tuned.json["operator"] == "mine"
    assert command("new", "mine", "-o", tmp_path).code == 2
    assert "identifier" in command("new", "Mine!").err


def test_files_from_elsewhere_need_trust(command: Command, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("raise SystemExit('it ran')\n")
    answer = command("tune", tmp_path / "theirs.py")
    assert answer.code == 2
    assert "--trust" in answer.err


def test_verify_says_right_and_wrong(command: Command, tmp_path: Path) -> None:
    source = Path("templates/cpu/rms_norm/naive.py")
    good = (Path(__file__).parents[2] / source).read_text()
    assert command("verify", Path(__file__).parents[2] / source).code == 0
    (tmp_path / "bad.py").write_text(good.replace("eps", "eps + 1", 1) if "eps + 1" in good
                                     else good.replace("+ bias[", "- bias["))  # fmt: skip
    wrong = command("verify", tmp_path / "bad.py", "--json")
    assert wrong.code == 1
    assert wrong.json["verified"][0]["status"] == "wrong"
    assert "expected" in wrong.json["verified"][0]["evidence"]


def test_bench_times_variants_and_vendor(command: Command) -> None:
    answer = command("bench", "rms_norm", "--target", "cpu", "--workloads", "rows=16,cols=64",
                     "--json")  # fmt: skip
    assert answer.code == 0, answer.err
    rows = answer.json["rows"]
    assert {r["name"] for r in rows} >= {"naive", "NumPy"}
    assert all(r["time_us"] > 0 for r in rows if r["status"] == "ok")


def test_doctor_and_list(command: Command) -> None:
    report = command("doctor", "--json").json
    assert report["targets"]["cpu"]["ok"]
    assert report["home"]["ok"]
    assert "rms_norm" in command("list").out
    assert command("--version").out.startswith("kernelsearch ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "rms_nrm"), ("unknown operator 'rms_nrm'", "did you mean", "rms_norm")),
        (("tune", "softmax", "--dtype", "int8", "--target", "cpu"), ("int8", "float32")),
        (("tune", "softmax", "--target", "tpu"), ("unknown target 'tpu'",)),
        (("tune", "softmax", "--budget", "soon"), ("budget", "soon", "90s")),
        (("tune", "softmax", "--workloads", "rows=x"), ("rows=x", "whole number")),
        (("tune", "softmax", "--workloads", "rows=4"), ("lacks cols",)),
        (("tune", "softmax", "--cache", "warm"), ("cold", "warm")),
        (("tune", "softmax", "--proposer", "oracle"), ("unknown proposer 'oracle'",)),
        (("tune", "nothere.toml"), ("nothere.toml", "rms_norm")),
        (("tune", "nothere.py"), ("nothere.py",)),
        (("resume", "nothing"), ("unknown study 'nothing'",)),
        (("show", "nothing"), ("unknown study",)),
        (("verify", "nothere.py"), ("nothere.py", "cannot be read")),
        (("verify", "nothere.txt"), (".cu or .py",)),
        (("clean", "--older-than", "-1"), ("--older-than", "-1")),
    ],
)
def test_mistakes_get_a_sentence(
    command: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    answer = command(*arguments)
    assert answer.code == 2, answer.out + answer.err
    for word in words:
        assert word in answer.err
    assert "Traceback" not in answer.err
    structured = command(*arguments, "--json")
    assert structured.code == 2
    assert words[0] in structured.json["error"]["message"]


def test_a_malformed_variant_is_told_with_line_and_column(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "bad.cu"
    file.write_text('/* kernelsearch\nformat = 1\noperator = "rms_norm"\nblock = = 3\n*/\n')
    answer = command("verify", file)
    assert answer.code == 2
    assert f"{file}:4:" in answer.err


def test_a_constraint_that_leaves_nothing_is_told(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "none.py"
    file.write_text(
        '"""kernelsearch\nformat = 1\noperator = "rms_norm"\n[tunables]\nA = [1, 2]\n'
        '[constraints]\nbig = "A > 4"\n[[launch]]\nkernel = "f"\nargs = ["y"]\n"""\n\n\n'
        "def f(y):\n    y[0, 0] = 1\n"
    )
    answer = command("verify", file)
    assert answer.code == 2
    assert "A > 4" in answer.err


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_no_gpu_is_a_sentence(command: Command) -> None:
    answer = command("tune", "rms_norm", "--target", "cuda")
    assert answer.code == 2
    assert "CUDA driver" in answer.err or "kernelsearch[cuda]" in answer.err


@pytest.mark.nvrtc
def test_compile_for_an_architecture_needs_no_gpu(command: Command) -> None:
    pytest.importorskip("cuda.core")
    file = Path(__file__).parents[2] / "templates/cuda/rms_norm/naive.cu"
    answer = command("verify", file, "--arch", "sm_90a", "--json")
    assert answer.code == 0, answer.out
    kernel = answer.json["compiled"][0]["kernels"][0]
    assert kernel["registers"] > 0


def test_a_folder_that_cannot_be_used_is_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = command(*TUNE, "--folder", tmp_path / "file" / "study")
    assert answer.code == 2
    assert str(tmp_path / "file") in answer.err


def test_a_full_disk_is_told(command: Command, tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)], capture_output=True,
        check=False,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip("mounting a small disk needs privileges")
    try:
        answer = command(*TUNE, "--folder", mount / "study")
        assert answer.code == 2, answer.out + answer.err
        assert "full" in answer.err
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_the_module_runs_as_a_command(ready: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernelsearch", "list", "--json"], capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "KERNELSEARCH_HOME": str(ready)}, check=True,
    )  # fmt: skip
    assert len(json.loads(done.stdout)["operators"]) >= 5
