"""How close the Learner comes to the machine: a critic update beside bare matrix products, and the loop's own share.

    python -m bench.learner

All take turns within one run, and the best turn of each counts. The products are those of the update itself:
forward, and backward for weights and inputs.
"""

import argparse
import platform
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from rlpd_gx.learner import LearnerConfig, SacContinuous
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.types import Batch

CRITICS, HIDDEN, BATCH, OBSERVATION, ACTION = 10, 256, 256, 17, 6
UPDATES = 10  # in a block


def block(updates):
    """Random transitions [updates, BATCH]."""
    generator = np.random.default_rng(0)
    shape = (updates, BATCH)
    none = np.zeros((*shape, 0), np.uint8)
    flags = np.zeros(shape, bool)
    observation = generator.normal(size=(2, *shape, OBSERVATION)).astype(np.float32)
    action = generator.uniform(-1, 1, (*shape, ACTION)).astype(np.float32)
    number = np.ones(shape, np.float32)
    return Batch(
        *observation, action, action, number, 0.99 * number, flags, flags, none, none, number, flags, flags,
        np.zeros(shape, np.int64), np.ones(shape, np.int64),
    )  # fmt: skip


def gflops_of_update(subset):
    """Of one critic update: target forward of the subset, forward and backward of all critics."""
    inputs = OBSERVATION + ACTION
    layers = [(inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)]
    forward = sum(2 * BATCH * i * o for i, o in layers)
    backward = 2 * forward - 2 * BATCH * inputs * HIDDEN  # nobody needs the gradient of the input
    return (CRITICS * (forward + backward) + subset * forward) / 1e9


def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def updates_of(learner, batch):
    """A block of critic updates, the next policies they need included."""
    minibatches = [learner._minibatch(batch, i) for i in range(UPDATES)]

    def update():
        ahead = learner._next_policies(minibatches)
        for i, (minibatch, policy) in enumerate(zip(minibatches, ahead, strict=True)):
            learner._update_critics(minibatch, policy, i)
            learner._update_target()

    return update


def critic(console, threads):
    torch.set_num_threads(threads)
    plain = LearnerConfig(ensemble_size=CRITICS, backup="none", actor="raw")
    spaces = [gym.spaces.Box(-1, 1, (size,), np.float32) for size in (OBSERVATION, ACTION)]
    batch, gflops = block(UPDATES), UPDATES * gflops_of_update(plain.target_subset)
    left, right = torch.randn(2, CRITICS, HIDDEN, HIDDEN)
    square = torch.randn(2048, 2048)
    products = "batched products 10 x 256^3"
    rivals = {
        "critic update": (updates_of(SacContinuous(plain, *spaces), batch), gflops),
        "critic update, compiled": (
            updates_of(SacContinuous(replace(plain, compile=True), *spaces), batch),
            gflops,
        ),
        products: (lambda: [left @ right for _ in range(20)], 20 * CRITICS * 2 * HIDDEN**3 / 1e9),
        "plain product 2048^3": (lambda: square @ square, 2 * 2048**3 / 1e9),
    }
    for function, _ in rivals.values():
        function()  # compiles, and wakes the caches
    times = {name: [] for name in rivals}
    for _ in range(15):
        for name, (function, _) in rivals.items():
            times[name].append(timed(function))
    speed = {name: rivals[name][1] / min(t) for name, t in times.items()}
    table = Table(
        title=f"{CRITICS} critics, 2x{HIDDEN}, LayerNorm, batch {BATCH}, {threads} threads",
        title_justify="left",
    )
    for heading in ("", "GFLOPS", "share of the batched products", "updates/s"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in speed.items():
        rate = f"{UPDATES / min(times[name]):.1f}" if name.startswith("critic") else ""
        table.add_row(name, f"{value:.1f}", f"{value / speed[products]:.0%}", rate)
    console.print(table)


def loop(console, steps):
    """Time outside environment and updates, as a share, with RLPD's own sizes and a guard."""
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
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    for threads in (1, 2):
        critic(console, threads)
    torch.set_num_threads(1)
    loop(console, arguments.steps)


if __name__ == "__main__":
    main()
