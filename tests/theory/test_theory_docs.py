"""The bench of the page on theory runs."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_bench_runs(tmp_path):
    """Elsewhere, since it writes results: those of a test are not to be committed."""
    (tmp_path / "results").mkdir()
    command = [sys.executable, "-m", "bench.theory", "--large", "500", "--peer", "20", "--turns", "1"]
    found = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    output = found.stdout
    assert (tmp_path / "results" / "bench.json").exists()
    assert "peak / data" in output
    assert "pymdptoolbox ValueIteration" in output
