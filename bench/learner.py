"""Speed of updates beside bare matrix products, and the share of time that the loop itself takes.

    python -m bench.learner [--compile]

All are timed in turn within one process, and the fastest time of each counts: CPU time where one thread computes, so
that other processes do not matter much. GFLOPS of an update count its matrix products: forward, and backward for
weights and inputs.
"""

import argparse
import platform
import shutil
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from rlpd_gx.learner import LearnerConfig, SacContinuous, SacDiscrete, SoftDiscrete
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.types import Batch

CRITICS, HIDDEN, BATCH, OBSERVATION, ACTION = 10, 256, 256, 17, 6
SMALL = {"critics": 3, "hidden": 128, "batch": 128, "inputs": 16, "actions": 6}  # Atari from objects
UPDATES = 10  # in a block


def block(updates, batch, observation, action):
    """Random transitions [updates, batch]; `action(generator, shape)` draws their actions."""
    generator = np.random.default_rng(0)
    shape = (updates, batch)
    none = np.zeros((*shape, 0), np.uint8)
    flags = np.zeros(shape, bool)
    seen = generator.normal(size=(2, *shape, observation)).astype(np.float32)
    taken = action(generator, shape)
    number = np.ones(shape, np.float32)
    return Batch(
        *seen, taken, taken, number, 0.99 * number, flags, flags, none, none, number, flags, ~flags,
        np.zeros(shape, np.int64), np.ones(shape, np.int64),
    )  # fmt: skip


def gflops_of_update(critics, targets, batch, sizes):
    """One critic update: forward of the target critics, forward and backward of all critics."""
    layers = list(pairwise(sizes))
    forward = sum(2 * batch * i * o for i, o in layers)
    backward = 2 * forward - 2 * batch * sizes[0] * sizes[1]  # the input needs no gradient
    return (critics * (forward + backward) + targets * forward) / 1e9


def timed(function):
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    function()
    return clock() - start


def updates_of(learner, batch):
    """A block of critic updates, including the next policies they need."""
    minibatches = [learner._minibatch(batch, i) for i in range(UPDATES)]

    def update():
        ahead = learner._next_policies(minibatches)
        for i, (minibatch, policy) in enumerate(zip(minibatches, ahead, strict=True)):
            learner._update_critics(minibatch, policy, i)
            learner._update_target()

    return update


def fastest(rivals, rounds):
    """The fastest time of each function, called in turn."""
    for function, _ in rivals.values():
        function()  # compiles, and warms up
        function()
    times = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, (function, _) in rivals.items():
            times[name].append(timed(function))
    return {name: min(values) for name, values in times.items()}


def show(console, title, rivals, best, reference, updates):
    """A row for each: GFLOPS, share of the reference, and updates/s where it is an update."""
    table = Table(title=title, title_justify="left")
    for heading in ("", "GFLOPS", f"share of {reference}", "updates/s"):
        table.add_column(heading, justify="left" if not heading else "right")
    speed = {name: rivals[name][1] / seconds for name, seconds in best.items()}
    for name, value in speed.items():
        rate = f"{updates / best[name]:.1f}" if "update" in name else ""
        table.add_row(name, f"{value:.1f}", f"{value / speed[reference]:.0%}", rate)
    console.print(table)


def critic(console, threads, compiled):
    """Ten critics of 2x256, as in RLPD."""
    torch.set_num_threads(threads)
    plain = LearnerConfig(ensemble_size=CRITICS, backup="none", actor="raw")
    spaces = [gym.spaces.Box(-1, 1, (size,), np.float32) for size in (OBSERVATION, ACTION)]
    batch = block(UPDATES, BATCH, OBSERVATION, lambda g, s: g.uniform(-1, 1, (*s, ACTION)).astype(np.float32))
    sizes = (OBSERVATION + ACTION, HIDDEN, HIDDEN, 1)
    gflops = UPDATES * gflops_of_update(CRITICS, plain.target_subset, BATCH, sizes)
    left, right = torch.randn(2, CRITICS, HIDDEN, HIDDEN)
    square = torch.randn(2048, 2048)
    products = "batched products 10 x 256^3"
    rivals = {"critic update": (updates_of(SacContinuous(plain, *spaces), batch), gflops)}
    if compiled:
        quick = SacContinuous(replace(plain, compile=True), *spaces)
        rivals["critic update, compiled"] = (updates_of(quick, batch), gflops)
    rivals[products] = (lambda: [left @ right for _ in range(20)], 20 * CRITICS * 2 * HIDDEN**3 / 1e9)
    rivals["plain product 2048^3"] = (lambda: square @ square, 2 * 2048**3 / 1e9)
    title = f"{CRITICS} critics, 2x{HIDDEN}, LayerNorm, batch {BATCH}, {threads} threads"
    show(console, title, rivals, fastest(rivals, 15), products, UPDATES)


def small(console, compiled):
    """The whole update at the size of Atari from objects, where overhead weighs most."""
    torch.set_num_threads(1)
    critics, hidden, rows, inputs, actions = SMALL.values()
    config = LearnerConfig(ensemble_size=critics, hidden_sizes=(hidden, hidden), backup="none")
    spaces = (gym.spaces.Box(-1, 1, (inputs,), np.float32), gym.spaces.Discrete(actions))
    batch = block(1, rows, inputs, lambda g, s: g.integers(actions, size=s))
    sizes = (inputs, hidden, hidden, actions)
    gflops = gflops_of_update(critics, critics, rows, sizes)
    rivals = {}
    learners = {"update without an actor": SoftDiscrete(config, *spaces)}
    if compiled:
        learners["update without an actor, compiled"] = SoftDiscrete(replace(config, compile=True), *spaces)
    learners["update with an actor"] = SacDiscrete(replace(config, actor="raw"), *spaces)
    for name, learner in learners.items():
        rivals[name] = (lambda learner=learner: learner.update(batch), gflops)
    rivals["its products alone"] = (products_of(critics, rows, sizes), gflops)
    title = f"{critics} critics, 2x{hidden}, {inputs} inputs, {actions} actions, batch {rows}, 1 thread"
    show(console, title, rivals, fastest(rivals, 200), "its products alone", 1)


def products_of(critics, rows, sizes):
    """The matrix products of one update without an actor, and nothing else."""
    layers = [torch.randn(critics, i, o) for i, o in pairwise(sizes)]
    inputs = [torch.randn(critics, rows, i) for i in sizes]

    def products():
        for _ in ("target", "critics"):
            for x, weight in zip(inputs, layers, strict=False):
                torch.bmm(x, weight)
        for i, weight in enumerate(layers):
            torch.bmm(inputs[i].mT, inputs[i + 1])
            if i:
                torch.bmm(inputs[i + 1], weight.mT)

    return products


def loop(console, steps):
    """Fraction of time outside environment and updates, with the sizes of RLPD and a guard."""
    folder = Path(tempfile.mkdtemp())
    values = {"env": "Hopper-v5", "rules": "rlpd_gx.envs.mujoco:power", "steps": steps, "learning_starts": 50,
              "evaluate_every": 0, "evaluation_episodes": 1, "utd": 2}  # fmt: skip
    config = configure("rlpd-gx", values, "bench")
    trainer = Trainer(Task(config), RunFolder.create(folder / "run", config, "bench"))
    trainer.begin()
    seconds = trainer.train(lambda _: None)["seconds"]
    shutil.rmtree(folder)
    inside = seconds["environment"] + seconds["update"] + seconds["evaluation"] + seconds["checkpoint"]
    share = 1 - inside / seconds["total"]
    console.print(f"the loop itself: {share:.1%} of its time ({steps} guarded Hopper steps, {seconds})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--compile", action="store_true", help="also with compile, which takes minutes at first"
    )
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    small(console, arguments.compile)
    for threads in (1, 2):
        critic(console, threads, arguments.compile)
    torch.set_num_threads(1)
    loop(console, arguments.steps)


if __name__ == "__main__":
    main()
