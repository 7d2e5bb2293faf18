"""The training loop: Learner, Guardian, data and environments meet here."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx.errors import GxError
from rlpd_gx.guardian import Audit, GuardedEnv
from rlpd_gx.learner import Diverged
from rlpd_gx.loop.evaluate import Evaluation, ShadowCounts, evaluate
from rlpd_gx.loop.lanes import Outcome
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.types import Array, Batch

CALIBRATION_BLOCKS = 50
EVALUATION_SEED = 1_000_000  # evaluations begin from states that training never begins from


class Watcher(Protocol):
    """Who looks on: a progress bar, TensorBoard, a test."""

    def step(self, trainer: "Trainer") -> None:
        """After each step of all lanes."""

    def row(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """For each row of metrics."""


class Trainer:
    """One run. `train()` goes from where it is to the end; `loop/resume.py` knows how to save and restore it."""

    def __init__(self, task: Task, folder: RunFolder, watchers: tuple[Watcher, ...] = ()) -> None:
        run, data = task.config.run, task.config.data
        self.task, self.folder, self.watchers = task, folder, watchers
        torch.set_num_threads(run.threads)
        self.learner = task.learner()
        offline = task.offline
        self.online = Ring(task.layout, min(data.capacity, run.steps * 2 + 2 * run.lanes), run.lanes)
        sampling, proposing = np.random.SeedSequence(run.seed).spawn(2)
        self.hybrid = Hybrid(
            online=self.online,
            offline=None if offline is None else offline.timeline,
            sampler=task.sampler(self.learner),
            generator=np.random.default_rng(sampling),
            batch_size=data.batch_size,
            updates=data.updates_per_step,
            stack=task.example.stack,
            gamma=data.gamma,
        )
        self.generator = np.random.default_rng(proposing)
        names = ["audit.jsonl"] if run.lanes == 1 else [f"audit-{i}.jsonl" for i in range(run.lanes)]
        self.lanes = task.lanes([task.make_env(audit=folder.path / n) for n in names])
        self.evaluation_lane = task.lanes([task.make_env(evaluation=True)])
        audits = self.audits()
        self.near_miss = audits[0].near_miss if audits else 0.0
        self.dss, self.dts = task.mix(), task.interval()
        self.step, self.warm_updates, self.owed_updates, self.updates = 0, 0, 0, 0
        self.window = Window()
        self.seconds = {"environment": 0.0, "update": 0.0, "evaluation": 0.0, "checkpoint": 0.0, "total": 0.0}
        self.stop_signal: int | None = None
        self.last_evaluation: Evaluation | None = None
        self.last_score = math.nan

    # --- one training step -------------------------------------------------------------------------------

    def train_step(self) -> None:
        """Propose, let the Guardian decide, execute, learn, remember."""
        with self.timed("environment"):
            complete = self.whole_sets()
        proposed = self.propose(complete)
        with self.timed("environment"):
            outcome = self.lanes.step(proposed, complete)
        # Only now the sets are known from which the actions were chosen: the steps that led here are whole.
        self.online.complete(outcome.safe_set)
        for _ in range(self.due_updates()):
            with self.timed("update"):
                batch = self.hybrid.sample(mix=self.dss(self.step), interval=self.dts(self.step))
                self.learn(batch)
        self.remember(proposed, outcome)
        self.step += len(self.lanes.lanes)

    def propose(self, safe_sets: Array | None) -> Array:
        """Proposed actions [L, ...]."""
        if self.step < self.task.config.run.random_steps:
            return self.random_actions()
        return self.learner.act(self.lanes.observation, safe_sets)

    def whole_sets(self) -> Array | None:
        """Codes [L, width] of the safe sets, where they must be known before an action is proposed."""
        run, learner = self.task.config.run, self.task.config.learner
        asked = learner.execution == "resample"
        if self.lanes.lazy and not asked:  # a guarded backup needs some states of which everything is known
            asked = self.generator.random() < run.complete_share
        return self.lanes.safe_sets() if asked else None

    def due_updates(self) -> int:
        """How many blocks of updates this step brings."""
        data, run = self.task.config.data, self.task.config.run
        if self.task.offline is None and self.step < max(data.learning_starts, 1):
            return 0
        self.owed_updates += run.lanes
        blocks, self.owed_updates = divmod(self.owed_updates, data.update_every)
        return blocks

    def calibrate(self) -> None:
        """Tell the learner what observations are like."""
        blocks = [self.hybrid.sample(self.dss(self.step)) for _ in range(CALIBRATION_BLOCKS)]
        self.learner.calibrate([_rows(block.observation) for block in blocks])

    def learn(self, batch: Batch) -> None:
        """One block of updates; a block that is not finite is kept for whoever looks into it."""
        if self.updates == 0 and self.task.config.learner.normalise:
            self.calibrate()
        try:
            progress = min(self.step / max(self.task.config.run.steps, 1), 1.0)
            self.window.learned(self.learner.update(batch, progress=progress))
        except Diverged as error:
            path = self.folder.path / "diverged.npz"
            np.savez(path, **_arrays(batch, error.minibatch))  # type: ignore[arg-type]
            raise GxError(
                f"step {self.step}: {error}; that minibatch is in {path}, and the last checkpoint is as it was"
            ) from None
        self.updates += len(batch.reward)

    def remember(self, proposed: Array, outcome: Outcome) -> None:
        """Store the step, count it, and begin again where episodes ended."""
        self.online.add(
            proposed_action=proposed.astype(self.online.layout.action.base, copy=False),
            executed_action=outcome.executed_action.astype(self.online.layout.action.base, copy=False),
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            margin=outcome.margin,
            unsafe_event=outcome.unsafe_event,
            next_observation=_single(self.lanes.newest(outcome.next_observation)),
            next_safe_set=outcome.next_safe_set,
            where=outcome.stepped,
        )
        self.window.stepped(outcome, self.near_miss)
        for done in outcome.finished:
            self.last_score = done.score
            values = asdict(done)
            self.report("episode", **({"return": values.pop("score")} | values))
        if outcome.ended.any():
            with self.timed("environment"):
                self.lanes.reset(outcome.ended)
            self.begin_lanes(outcome.ended)

    def begin_lanes(self, where: Array) -> None:
        """Episodes begin in some lanes [L] bool, which have been reset."""
        self.online.begin(_single(self.lanes.frame), where=where)

    def random_actions(self) -> Array:
        """Uniform actions [L, ...]."""
        space = self.task.example.action_space
        if isinstance(space, gym.spaces.Discrete):
            return self.generator.integers(space.n, size=len(self.lanes.lanes)) + space.start
        assert isinstance(space, gym.spaces.Box)
        shape = (len(self.lanes.lanes), *space.shape)
        return self.generator.uniform(space.low, space.high, shape).astype(space.dtype)

    # --- around it ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The first resets; not called when a run is resumed."""
        run = self.task.config.run
        seeds = [run.seed + lane for lane in range(run.lanes)]
        everywhere = np.ones(run.lanes, bool)
        self.lanes.reset(everywhere, seeds)
        self.begin_lanes(everywhere)

    def train(self, save: Any) -> dict[str, Any]:
        """Go on to the end; `save(trainer)` makes a checkpoint. Returns the result."""
        run, start = self.task.config.run, time.perf_counter()
        with self.signals():
            self.warm_start(save)
            while self.step < run.steps and self.stop_signal is None:
                self.train_step()
                self.after_step(save)
            self.seconds["total"] += time.perf_counter() - start
            if self.stop_signal is not None:
                save(self)
                raise Stopped(self.stop_signal, self.step)
        if self.last_evaluation is None or self.step == 0:
            self.evaluate()
        result = self.result()
        self.folder.write("result.json", result)
        return result

    def warm_start(self, save: Any) -> None:
        """Updates before the first step."""
        total = self.task.config.run.warm_start_updates
        if total and self.task.offline is None:
            raise GxError("warm_start_updates learn from offline data, and there is none; give --offline")
        before = self.warm_updates
        while self.warm_updates < total and self.stop_signal is None:
            with self.timed("update"):
                self.learn(self.hybrid.sample(mix=0.0, interval=self.dts(0)))
            self.warm_updates += self.task.config.data.updates_per_step
            for watcher in self.watchers:
                watcher.step(self)
        if self.warm_updates > before and self.stop_signal is None:
            self.report("train", **self.window.row())
            save(self)

    def after_step(self, save: Any) -> None:
        """Rows, evaluations and checkpoints, each when it is due."""
        run = self.task.config.run
        for watcher in self.watchers:
            watcher.step(self)
        last = self.step >= run.steps
        if self.crossed(run.log_every) or last:
            self.report("train", mix=self.dss(self.step), interval=self.dts(self.step), **self.window.row())
        if last or (run.evaluate_every and self.crossed(run.evaluate_every)):
            self.evaluate()
        if last or self.crossed(run.checkpoint_every):
            with self.timed("checkpoint"):
                save(self)

    def evaluate(self) -> None:
        """Whole episodes on an environment of their own."""
        run = self.task.config.run
        episodes = run.evaluation_episodes * (2 if self.step >= run.steps else 1)
        with self.timed("evaluation"):
            self.last_evaluation = evaluate(
                self.learner,
                self.evaluation_lane,
                episodes,
                EVALUATION_SEED + 1_000 * run.seed,
                sample=run.evaluation_policy == "sample",
                near_miss=self.near_miss,
            )
        self.report("evaluation", **self.last_evaluation.row())

    def report(self, kind: str, **values: Any) -> None:
        """A row of metrics, to the file and to whoever looks on."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        self.folder.log(kind, self.step, **values)
        for watcher in self.watchers:
            watcher.row(kind, self.step, values)

    def crossed(self, every: int) -> bool:
        """Whether a multiple of `every` lies in the last step of all lanes."""
        return self.step // every > (self.step - len(self.lanes.lanes)) // every

    def result(self) -> dict[str, Any]:
        """What came out."""
        run = self.task.config.run
        assert self.last_evaluation is not None
        audits = self.audits()
        return {
            "env": run.env, "preset": self.task.config.preset, "guard": run.guard if run.rules else "no rules",
            "seed": run.seed, "steps": self.step, "updates": self.updates, "training": asdict(self.window.total),
            "evaluation": self.last_evaluation.row(),
            "rules_fingerprint": None if self.task.example.guardian is None else self.task.example.guardian.fingerprint,
            "audit": Audit.total(audits).as_dict() if audits else {},
            "rows": asdict(self.hybrid.counts),
            "simulated_steps": self.lanes.simulated_steps + self.evaluation_lane.simulated_steps,
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }  # fmt: skip

    def audits(self) -> list[Audit]:
        """The audit of each lane."""
        return [lane.env.audit for lane in self.lanes.lanes if isinstance(lane.env, GuardedEnv)]

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time inside to a part of the run."""
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start

    @contextmanager
    def signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run at the next step, with a checkpoint; a second one at once."""

        def note(number: int, frame: Any) -> None:
            if self.stop_signal is not None:
                raise KeyboardInterrupt
            self.stop_signal = number

        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, note)
        except ValueError:  # not in the main thread: whoever runs us there stops us otherwise
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Stopped(Exception):
    """The run was asked to end early and has saved itself."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step}")
        self.number, self.step = number, step


class Window:
    """What happened since the last row of metrics, and in all."""

    def __init__(self) -> None:
        self.counts, self.total = ShadowCounts(), ShadowCounts()
        self.sums: dict[str, float] = {}
        self.updates = 0

    def stepped(self, outcome: Outcome, near_miss: float) -> None:
        """Count a step of every lane."""
        for i in np.flatnonzero(outcome.stepped).tolist():
            for counts in (self.counts, self.total):
                counts.add(outcome.verdicts[i], near_miss, bool(outcome.unsafe_event[i]))

    def learned(self, metrics: dict[str, float]) -> None:
        """Add up the metrics of a block of updates."""
        self.updates += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def row(self) -> dict[str, float]:
        """Means since the last row; then it begins anew."""
        values = {name: value / self.updates for name, value in self.sums.items()}
        rates = self.counts.rates() if self.counts.steps else {}
        self.counts, self.sums, self.updates = ShadowCounts(), {}, 0
        return values | rates

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "counts": asdict(self.counts),
            "total": asdict(self.total),
            "sums": self.sums,
            "updates": self.updates,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.counts, self.total = ShadowCounts(**state["counts"]), ShadowCounts(**state["total"])
        self.sums, self.updates = dict(state["sums"]), state["updates"]


def _single(observation: Any) -> Any:
    """In the number type of the replay: 64-bit floats become 32-bit ones."""
    if isinstance(observation, dict):
        return {key: _single(part) for key, part in observation.items()}
    return observation.astype(np.float32) if observation.dtype == np.float64 else observation


def _arrays(batch: Batch, minibatch: int) -> dict[str, Array]:
    """One minibatch of a block, as arrays by name."""
    arrays: dict[str, Array] = {}
    for name, value in vars(batch).items():
        if isinstance(value, np.ndarray):
            arrays[name] = value[minibatch]
        elif isinstance(value, dict):
            arrays |= {f"{name}/{key}": part[minibatch] for key, part in value.items()}
    return arrays


def _rows(observation: Any) -> Any:
    """Observations [U, B, ...] as rows [U * B, ...]."""
    if isinstance(observation, dict):
        return {key: _rows(part) for key, part in observation.items()}
    return observation.reshape(-1, *observation.shape[2:])
