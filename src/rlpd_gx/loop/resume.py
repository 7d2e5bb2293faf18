"""Saving a run and going on with it, bit for bit where the environments can be restored."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.envs import snapshots
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import GuardedEnv
from rlpd_gx.learner import Sac
from rlpd_gx.loop.checkpoint import Checkpoints
from rlpd_gx.loop.environments import Environments, Member
from rlpd_gx.loop.evaluate import Evaluation, ShadowCounts
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer, Watcher
from rlpd_gx.replay.segments import Segments


class Saver:
    """Makes checkpoints of a trainer: parameters and states in one, experience in segments that only grow."""

    def __init__(self, folder: RunFolder) -> None:
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.segments = Segments(folder.segments)

    def __call__(self, trainer: Trainer) -> None:
        """Write a checkpoint, or leave the last one as it was."""
        self.segments.append(trainer.online)
        self.checkpoints.save(trainer.step, _state(trainer, self.segments), files=self.segments.files)
        self.segments.prune({path.name for path in self.checkpoints.files()})


def resume(path: Path, watchers: tuple[Watcher, ...] = ()) -> tuple[Trainer, Saver, list[str]]:
    """The trainer of a run folder as it was at its newest good checkpoint, and what there is to say of it."""
    folder, config = RunFolder.open(path)
    saver, task = Saver(folder), Task(config)
    if not folder.checkpoints.exists():  # killed before the first one was made
        trainer = Trainer(task, folder, watchers)
        folder.cut({})
        trainer.begin()
        saver(trainer)
        return trainer, saver, ["there is no checkpoint yet: the run begins"]
    loaded = saver.checkpoints.load()
    state, notes = loaded.state, list(loaded.notes)
    _refuse_other_rules(path, task, state)
    if state["offline_digest"] != _offline_digest(task):
        raise GxError(
            f"{path}: the offline data {config.run.offline} is not what the run began with; restore it, or "
            "begin a new run"
        )
    trainer = Trainer(task, folder, watchers)
    folder.cut(state["offsets"])  # after the audits have said that they begin: they go on instead
    trainer.learner.load_state(state["learner"])
    saver.segments.restore(trainer.online, state["segments"], state["ring"])
    trainer.hybrid.load_state(state["hybrid"])
    trainer.generator.bit_generator.state = state["generator"]
    trainer.window.load_state(state["window"])
    for name in ("step", "warm_updates", "owed_updates", "updates", "seconds"):
        setattr(trainer, name, state[name])
    trainer.last_score = np.nan if state["last_score"] is None else state["last_score"]
    if state["last_evaluation"] is not None:
        trainer.last_evaluation = _evaluation(state["last_evaluation"])
    for member, saved in zip(trainer.environments.members, state["environments"], strict=True):
        notes += _restore_member(trainer, member, saved)
    return trainer, saver, notes


def _refuse_other_rules(path: Path, task: Task, state: dict[str, Any]) -> None:
    guardian = task.example.guardian
    if state["rules_fingerprint"] != (None if guardian is None else guardian.fingerprint):
        raise GxError(
            f"{path}: the rules {task.config.run.rules} have changed since the checkpoint was made; restore them, or "
            "begin a new run: experience under other rules is not mixed"
        )


def _offline_digest(task: Task) -> str | None:
    """What tells offline data from other data: its actions, rewards and ends."""
    if task.offline is None:
        return None
    line, digest = task.offline.timeline, sha256()
    for column in (line.executed_action, line.reward, line.is_step):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _state(trainer: Trainer, segments: Segments) -> dict[str, Any]:
    guardian = trainer.task.example.guardian
    evaluation = trainer.last_evaluation
    return {
        "rules_fingerprint": None if guardian is None else guardian.fingerprint,
        "offline_digest": _offline_digest(trainer.task),
        "offsets": trainer.folder.offsets(),
        "learner": trainer.learner.state(),
        "segments": segments.names,
        "ring": trainer.online.state()[1],
        "hybrid": trainer.hybrid.state(),
        "generator": trainer.generator.bit_generator.state,
        "window": trainer.window.state(),
        "step": trainer.step,
        "warm_updates": trainer.warm_updates,
        "owed_updates": trainer.owed_updates,
        "updates": trainer.updates,
        "seconds": dict(trainer.seconds),
        "last_score": None if np.isnan(trainer.last_score) else trainer.last_score,
        "last_evaluation": None if evaluation is None else evaluation.row(),
        "environments": [
            _member_state(trainer.environments, member) for member in trainer.environments.members
        ],
    }


def _member_state(environments: Environments, member: Member) -> dict[str, Any]:
    observation, environment = member.observation, snapshots.snapshot(member.env)
    return {
        "environment": environment,
        "observation": observation if isinstance(observation, dict) else {"": np.asarray(observation)},
        "counts": member.counts(),
        "audit": member.env.audit.state() if isinstance(member.env, GuardedEnv) else None,
        "rules": [rule.memory() for rule in member.look_aheads],
        # where the episode must begin anew, its last step is cut here, and bootstraps from this state
        "safe_set": None if environment is not None else environments.code(member),
    }


def _restore_member(trainer: Trainer, member: Member, saved: dict[str, Any]) -> list[str]:
    if isinstance(member.env, GuardedEnv):
        member.env.audit.load_state(saved["audit"])
    for rule, memory in zip(member.look_aheads, saved["rules"], strict=True):
        rule.restore_memory(memory)
    if saved["environment"] is not None:
        snapshots.restore(member.env, saved["environment"])
        observation = saved["observation"]
        member.observation = observation.get("", observation)
        for name, value in saved["counts"].items():
            setattr(member, name, value)
        return []
    why = snapshots.why_not(member.env)
    seed = trainer.task.config.run.seed + 7919 * (trainer.step + 1) + member.index
    member.reset(seed)
    here = np.arange(len(trainer.environments.members)) == member.index
    trainer.online.complete(np.tile(saved["safe_set"], (len(here), 1)), where=here)
    trainer.begin_episodes(here)
    return [f"the episode of environment {member.index} starts over: {why}"]


def _evaluation(row: dict[str, Any]) -> Evaluation:
    counts = {name: row[name] for name in ShadowCounts().__dict__}
    success = list(row.get("success_steps", []))
    return Evaluation(list(row["returns"]), list(row["lengths"]), success, ShadowCounts(**counts))


def load_learner(path: Path) -> tuple[Sac, Environments]:
    """The learner of a run as it was last saved, and one member of its environment to play in."""
    folder, config = RunFolder.open(path)
    task = Task(config)
    learner = task.learner()
    state = Checkpoints(folder.checkpoints).load().state
    _refuse_other_rules(path, task, state)
    learner.load_state(state["learner"])
    return learner, task.environments([task.make_env(evaluation=True)])
