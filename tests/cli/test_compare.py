"""`rlpd-gx train --compare` when something goes wrong, and `rlpd-gx compare` afterwards."""

import signal
import subprocess
import sys
from pathlib import Path

from rlpd_gx.cli.arguments import without

WORDS = ["--env=Probe/LureDiscrete-v0", "--rules=rlpd_gx.envs.probes:lure_mask", "--utd=1", "--batch-size=8",
         "--hidden-sizes=8,8", "--ensemble-size=2", "--learning-starts=8", "--evaluation-episodes=1"]  # fmt: skip
RLPD_GX = [sys.executable, "-m", "rlpd_gx"]


def test_stopped_runs_say_how_to_resume_and_are_compared_then(tmp_path: Path) -> None:
    words = [*WORDS, "--steps=100000", "--log-every=20", "--compare", "--out=run"]
    both = subprocess.Popen([*RLPD_GX, "train", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert both.stderr is not None
    seen: set[str] = set()
    for line in both.stderr:  # until both have learned something
        seen.add(line.split("  ")[0])
        if seen == {"guardian", "no guard"}:
            break
    both.send_signal(signal.SIGTERM)
    _, told = both.communicate(timeout=120)
    assert both.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in told
    for folder in ("run", "run-unguarded"):
        assert f"resume with: rlpd-gx train --resume {folder}\n" in told
        assert not (tmp_path / folder / "result.json").exists()
    done = subprocess.run(
        [*RLPD_GX, "compare", "run", "run-unguarded"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "comparison.html").exists()


def test_a_run_that_fails_stops_the_other_and_says_why_once(tmp_path: Path) -> None:
    (tmp_path / "taken-unguarded").mkdir()
    (tmp_path / "taken-unguarded" / "config.json").write_text("{}")
    long = [*RLPD_GX, "train", *WORDS, "--steps=1000000", "--compare", "--out=taken"]
    done = subprocess.run(long, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("taken-unguarded: holds a run already") == 1
    assert "Traceback" not in done.stderr


def test_what_compare_replaces_is_left_out_of_the_command_line() -> None:
    words = [
        "train",
        "--out",
        "a",
        "--guard=shield",
        "--rules",
        "r:x",
        "--track",
        "wandb",
        "--backup",
        "none",
    ]
    assert without(words, ["--out", "--guard", "--backup"]) == ["train", "--rules", "r:x", "--track", "wandb"]
