"""The bench of the page on theory runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_bench_runs():
    command = [sys.executable, "-m", "bench.theory", "--large", "500", "--peer", "20", "--turns", "1"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "peak / data" in output
    assert "pymdptoolbox ValueIteration" in output
