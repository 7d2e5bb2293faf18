"""A format that lives in one file outside the package."""

import sys

import numpy as np
import pytest

from rlpd_gx.cli import main
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import Episode, Format, formats, load, register

MODULE = '''
import numpy as np
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import Episode


class Numbers:
    """Rewards as text, one episode on each line."""

    name = "numbers"
    description = "rewards as text"

    def detect(self, path):
        return path.suffix == ".numbers"

    def read(self, path, scale=1.0):
        for row, line in enumerate(path.read_text().splitlines()):
            try:
                rewards = scale * np.array([float(word) for word in line.split()])
            except ValueError as error:
                raise GxError(f"{path}: row {row}: {error}; write numbers") from None
            steps = len(rewards)
            yield Episode(np.zeros((steps + 1, 1)), np.zeros((steps, 1)), rewards, True, False, first_row=row)


numbers = Numbers()
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "my_formats.py").write_text(MODULE)
    (tmp_path / "log.numbers").write_text("1 2\n3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_formats", raising=False)
    yield tmp_path
    sys.modules.pop("my_formats", None)


def test_data_convert_reads_it(outside, monkeypatch, capsys):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["rlpd-gx", "data", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr()

    code, said = command("convert", "log.numbers", "--format", "my_formats:numbers", "--out", "kept")
    assert (code, said.out) == (0, "3 steps in 2 episodes in kept\n")
    data = load("kept")
    assert data.timeline.reward[data.timeline.is_step].tolist() == [1, 2, 3]
    assert data.format == "my_formats:numbers"
    code, said = command("audit", "log.numbers", "--format", "my_formats:numbers")
    assert code == 0
    (outside / "log.numbers").write_text("1 two\n")
    code, said = command("convert", "log.numbers", "--format", "my_formats:numbers")
    assert code == 2
    assert "log.numbers: row 0" in said.err
    code, said = command("convert", "log.numbers", "--format", "my_formats:nothing")
    assert code == 2
    assert "my_formats has no 'nothing'" in said.err
    code, said = command("convert", "log.numbers", "--format", "my_formats:MODULE_NAME")
    assert code == 2
    (outside / "log.numbers").write_text("1 nan\n")
    code, said = command("convert", "log.numbers", "--format", "my_formats:numbers")
    assert code == 2
    assert "'rewards', row 1: is NaN" in said.err  # what every episode must satisfy, this one too


def test_its_options_and_its_code_are_part_of_the_cache(outside):
    assert load("log.numbers", format="my_formats:numbers", options={"scale": 2.0}).timeline.reward[0] == 2
    assert load("log.numbers", format="my_formats:numbers").timeline.reward[0] == 1
    with pytest.raises(GxError, match="no option 'colour'"):
        load("log.numbers", format="my_formats:numbers", options={"colour": "red"})
    (outside / "my_formats.py").write_text(MODULE.replace("scale=1.0", "scale=10.0"))
    del sys.modules["my_formats"]
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        for cached in outside.rglob("my_formats*.pyc"):
            cached.unlink()
        assert load("log.numbers", format="my_formats:numbers").timeline.reward[0] == 10
    finally:
        sys.dont_write_bytecode = before


def test_a_registered_one_is_recognised(outside, monkeypatch):
    monkeypatch.setattr(formats, "_registered", {})

    class Ones:
        name, description = "ones", "as many steps as bytes"

        def detect(self, path):
            return path.suffix == ".ones"

        def read(self, path):
            steps = path.stat().st_size
            yield Episode(np.zeros((steps + 1, 1)), np.zeros((steps, 1)), np.ones(steps), True, False)

    format: Format = Ones()
    assert register(format) is format
    (outside / "log.ones").write_text("abc")
    data = load("log.ones")
    assert (data.format, data.steps) == ("ones", 3)
    with pytest.raises(GxError, match=r"known are: ones .*as many steps as bytes.*minari"):
        load("log.numbers")


def test_the_included_ones():
    assert sorted(formats.formats()) == [
        "action_log",
        "d4rl",
        "dqn_replay",
        "minari",
        "npz",
        "rl_unplugged",
        "table",
    ]
