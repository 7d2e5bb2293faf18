"""The states that a training run visited, as SimHash codes."""

from pathlib import Path

import numpy as np

from rlpd_gx import trees
from rlpd_gx.envs.making import ATARI
from rlpd_gx.loop.resume import last_saved
from rlpd_gx.loop.task import Task
from rlpd_gx.metrics.exploration import SimHash
from rlpd_gx.metrics.subject import Unavailable
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.segments import Segments
from rlpd_gx.types import Array, Observation


def codes(folder: Path, reference: Observation) -> Array:
    """Codes [n] of the states that a run visited online, in order; `reference` observations centre and scale them."""
    run, task, loaded = last_saved(folder)
    state, num_envs = loaded.state["ring"], task.config.run.num_envs
    if max(state["written"]) > state["rows"]:
        raise Unavailable(
            "the replay buffer no longer holds the first steps; give the run a larger buffer_size"
        )
    ring = Ring(task.layout, state["rows"] * num_envs, num_envs)
    Segments(run.segments).restore(ring, loaded.state["segments"], state)
    order = np.arange(len(ring.timeline)).reshape(num_envs, -1).T.ravel()  # environments step together
    frames = trees.index(ring.timeline.observation, order[ring.timeline.is_step[order]])
    newest = trees.index(reference, np.s_[:, -1]) if task.example.stack > 1 else reference
    return SimHash(positions(task, newest))(positions(task, frames))


def positions(task: Task, frames: Observation) -> Array:
    """What is hashed of frames [n, ...]: of Atari RAM and objects only where things are, since RAM holds timers."""
    parts = [np.asarray(part) for part in trees.leaves(frames)]
    if len(parts) > 1:
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    (array,) = parts
    ours = ATARI.fullmatch(task.config.run.env)
    if ours is None or ours["observation"] == "pixels":
        return array
    from rlpd_gx.envs.atari.objects import objects_of

    objects = objects_of(ours["game"])
    if ours["observation"] == "ram":
        array = np.stack([objects(ram, ram) for ram in array])  # equal images: all changes are 0
    ends = (" present", " x", " y")
    where = [n.endswith(ends) and "change" not in n and "from player" not in n for n in objects.names]
    return array[:, np.array(where)]
