"""The page on theory and its bench do what they say."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_snippets_of_the_page_run(tmp_path):
    page = (ROOT / "docs" / "theory.md").read_text()
    (python,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (shell,) = re.findall(r"```bash\n(rlpd-gx.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True, capture_output=True)
    for line in shell.splitlines():
        program = "from rlpd_gx.cli import main; main()"
        subprocess.run(
            [sys.executable, "-c", program, *line.split()[1:]], cwd=tmp_path, check=True, capture_output=True
        )
    assert (tmp_path / "mine.solution.npz").exists()


def test_the_bench_runs():
    command = [sys.executable, "-m", "bench.theory", "--large", "500", "--peer", "20", "--turns", "1"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "peak / data" in output
    assert "pymdptoolbox ValueIteration" in output
