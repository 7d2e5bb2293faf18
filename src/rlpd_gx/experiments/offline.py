"""Offline data of experiments: a person's folder, sets of the package, or a few recorded steps for smoke runs."""

import re
from collections.abc import Callable
from pathlib import Path

from rlpd_gx.errors import GxError
from rlpd_gx.experiments.experiment import Scale
from rlpd_gx.experiments.plan import BUNDLED
from rlpd_gx.experiments.reported import GAMES
from rlpd_gx.trees import Json

SMOKE_EPISODES, SMOKE_STEPS = 4, 30


def data_for(scale: Scale, folder: Path | None, out: Path, *, record: bool = True) -> Callable[[str], str]:
    """Task -> its offline data: in the folder, or of the sets that come with the package; empty where there is none.

    Smoke runs have a few steps of their own, which are recorded if `record` permits it.
    """
    if folder is not None:
        return _in(folder)
    if scale.name == "smoke":
        return _recorded(out / "data", record=record)
    planned = BUNDLED / "planner"
    return _in(planned) if planned.is_dir() else lambda task: ""


def preferring(name: str, data: Callable[[str], str]) -> Callable[[str], str]:
    """The data asked for; of the sets of the package, that of this name in games that have it."""

    def find(task: str) -> str:
        asked, better = data(task), BUNDLED / name / f"{task}.json.gz"
        of_the_package = asked and Path(asked).is_relative_to(BUNDLED)
        return str(better) if of_the_package and better.exists() else asked

    return find


def _in(folder: Path) -> Callable[[str], str]:
    """The file or folder with the name of the task as a word in its own; at the beginning, if there is one."""
    if not folder.is_dir():
        raise GxError(f"--data {folder}: there is no such folder")

    def find(task: str) -> str:
        word = re.compile(rf"(?<![a-z]){re.escape(task)}", re.IGNORECASE)  # no Hopper in ChopperCommand
        found = sorted((hit.start(), path) for path in folder.iterdir() if (hit := word.search(path.name)))
        return str(found[0][1]) if found else ""

    return find


def _recorded(folder: Path, *, record: bool) -> Callable[[str], str]:
    """A few random steps of a game, recorded once."""

    def find(task: str) -> str:
        path = folder / f"{task}.json.gz"
        if record and task in GAMES and not path.exists():
            _record(task, path)
        return str(path) if path.exists() else ""

    return find


def _record(game: str, path: Path) -> None:
    import numpy as np

    from rlpd_gx.envs.making import make
    from rlpd_gx.replay.offline import record

    plain: Json = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}
    env = make(f"ALE/{game}-v5", max_episode_steps=SMOKE_STEPS, **plain)
    env.action_space.seed(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    sink = record.ActionLogSink(path, env, {"policy": "random", "seed": 0})
    recorder = record.Recorder(env, sink, 0, None, None)
    act = lambda observation: env.action_space.sample()  # noqa: E731
    record.roll_out(
        recorder, act, np.random.default_rng(0), epsilons=(0.0,), episodes=SMOKE_EPISODES, steps=None
    )
    sink.close({})
    env.close()
