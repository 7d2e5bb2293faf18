import subprocess
import sys
from pathlib import Path

import pytest

from rlpd_gx.experiments.running import TRIALS, command_line

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "results"), [("hopper", "hopper"), ("adroit", "adroit"), ("atari_ram", "atari-ram")]
)
def test_table_has_a_line_for_every_result(module, results):
    command = [sys.executable, "-m", f"rlpd_gx.experiments.{module}", "table"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = sorted((ROOT / "results" / results).glob("*.json"))
    assert [line.split()[0] for line in done.stdout.splitlines()][: len(files)] == [f.stem for f in files]


def test_run_gets_the_options_by_name(monkeypatch):
    calls = []

    def run(**options):
        calls.append(options)

    def table():
        calls.append("table")

    options = {"task": {"choices": ("pen", "door")}, "--data": {"type": Path, "required": True}, **TRIALS}
    for line in ("run pen --data a.hdf5 --seed 3", "table", "run car --data a.hdf5", "run pen", ""):
        monkeypatch.setattr(sys, "argv", ["experiment", *line.split()])
        try:
            command_line("An experiment.", run, table, options)
        except SystemExit as stop:
            calls.append(stop.code)
    given = {
        "task": "pen",
        "data": Path("a.hdf5"),
        "seed": 3,
        "out": Path("runs"),
        "name": None,
        "settings": "{}",
    }
    assert calls == [given, "table", 2, 2, 2]
