"""A user's folder outside the repository, with the package installed from its wheel."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from users_folder import fill

REPOSITORY = Path(__file__).parents[2]
TINY = (
    "--utd=1 --batch-size=8 --hidden-sizes=8 --ensemble-size=2 --learning-starts=8 --evaluation-episodes=1 "
    "--checkpoint-every=10 --log-every=10 --device=cpu"
)
DRIVER = """
import contextlib, io, json, os, shlex, sys
import rlpd_gx, rlpd_gx.cli

assert rlpd_gx.__file__.startswith(os.environ["PYTHONPATH"]), rlpd_gx.__file__
answers = []
for line in json.loads(sys.argv[1]):
    sys.argv = shlex.split(line)
    out, error, code = io.StringIO(), io.StringIO(), "no exit"
    try:
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(out):
            rlpd_gx.cli.main()
    except SystemExit as stop:
        code = stop.code
    except BaseException as raised:  # a traceback, if the command were alone
        code = repr(raised)
    answers.append((code, out.getvalue(), error.getvalue()))
print(json.dumps(answers))
"""
WRAPPERS = """
import gymnasium as gym

class Half(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 2
"""


class Answer(NamedTuple):
    """What a command printed."""

    out: str
    error: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package from its wheel; its dependencies are those of this environment."""
    made = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made / "dist")]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = (made / "dist").glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, str(made / "site"), str(wheel)], check=True, capture_output=True)
    return made / "site"


@pytest.fixture
def user(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the user's files."""
    fill(tmp_path)
    (tmp_path / "wrap.py").write_text(WRAPPERS)
    (tmp_path / "driver.py").write_text(DRIVER)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("RLPD_GX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def typed(user: Path) -> Callable[..., list[Answer]]:
    """Run command lines, one after the other in one process; each must succeed."""

    def run(*lines: str) -> list[Answer]:
        words = json.dumps([line.replace("TINY", TINY) for line in lines])
        command = [sys.executable, "driver.py", words]
        done = subprocess.run(command, cwd=user, capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout.splitlines()[-1])
        for line, (code, out, error) in zip(lines, answers, strict=True):
            assert code == 0, f"{line}\n{code}\n{out}\n{error}"
        return [Answer(out, error) for _, out, error in answers]

    return run
