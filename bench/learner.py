"""Updates beside those of peers, of an older commit, and of bare matrix products; and what the loop itself takes.

    python -m bench.learner [--quick]

Contenders of one size take turns, each in a process of its own with one thread (`bench.updates` says what they do); CPU
time counts, so that other processes do not matter much. `--quick` takes few turns, to see that everything runs.
"""

import argparse
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from bench.timing import in_turns, interleaved, keep, ratio, spread, verdict
from bench.updates import CONTENDERS, SIZES, batch_of, learner_of
from rich.console import Console
from rich.table import Table

from rlpd_gx.learner import SoftDiscrete

BEFORE = "1061120"  # the last commit before updates were made faster
MS = 1e-3
PEERS = {"torchrl": "torchrl", "sb3": "stable_baselines3", "jax": "jax"}
SHOWN = {
    "before": f"ours at {BEFORE}, with an actor",
    "torchrl": "torchrl, SAC",
    "sb3": "stable-baselines3, SAC",
    "jax": "JAX, one jit, as RLPD",
}
LEAST = {  # how many times faster ours must be than each
    ("small", "ours"): {"before": 1.5},
    ("small", "ours, compiled"): {"before": 2.5},
    ("large", "ours, compiled"): {"torchrl": 1.5, "sb3": 1.5, "jax": 1.5},
}


@contextmanager
def serving(size: str, name: str, source: Path) -> Iterator[subprocess.Popen]:
    """A process that updates on request."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source), os.getcwd()]),
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "bench.updates", size, name]
    process = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise SystemExit(f"{name} does not run ({size} networks)")
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


def answer(process: subprocess.Popen, updates: int) -> float:
    """CPU seconds of one update."""
    process.stdin.write(f"{updates}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


@contextmanager
def sources(console: Console) -> Iterator[dict[str, Path]]:
    """Contender -> the folder of this project's source that it imports; those that can run here."""
    here = Path("src").absolute()
    found = {name: here for name in CONTENDERS if name != "before" and _installed(name)}
    if missing := [name for name in PEERS if name not in found]:
        console.print(
            f"not installed: {', '.join(missing)} (`make bench` builds an environment with all peers)"
        )
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", BEFORE, "src"], capture_output=True)
        if archive.returncode == 0:
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            found["before"] = Path(folder) / "src"
        else:
            console.print(f"commit {BEFORE} is not in this clone, so updates of before are not measured")
        yield found


def _installed(name: str) -> bool:
    return name not in PEERS or find_spec(PEERS[name]) is not None


def updates(console: Console, size_name: str, found: dict[str, Path], rounds: int) -> None:
    """One update of each contender; the share of the matrix products in it, and the targets."""
    size, count = SIZES[size_name], 10 if size_name == "small" else 3
    names = [n for n in CONTENDERS if n in found and (size.discrete or n != "ours, with an actor")]
    with ExitStack() as stack:
        processes = {name: stack.enter_context(serving(size_name, name, found[name])) for name in names}
        timers = {name: lambda p=process: answer(p, count) for name, process in processes.items()}
        seconds = in_turns(timers, rounds)
    title = (
        f"One update: {size.critics} critics, 2x{size.hidden}, {size.inputs} inputs, {size.actions} "
        f"{'discrete' if size.discrete else 'continuous'} actions, batch {size.batch}, 1 thread"
    )
    table = Table("", "ms (quartiles)", "of ours", "of ours, compiled", title=title, title_justify="left")
    for name, times in seconds.items():
        ratios = (f"{ratio(times, seconds[own]):.2f}" for own in ("ours", "ours, compiled"))
        table.add_row(SHOWN.get(name, name), spread(times, MS), *ratios)
    console.print(table)
    for (of, own), least in LEAST.items():
        for peer, factor in least.items():
            if of == size_name and peer in seconds:
                what = f"{size_name} update: {SHOWN[peer]} / {own}"
                value = ratio(seconds[peer], seconds[own])
                console.print(f"  {what}: {value:.2f}, {verdict(value, what, least=factor)}")


def flops_of(size, target_critics: int) -> float:
    """Matrix products of one critic update: forward of the target critics, forward and backward of all."""
    layers = list(pairwise(_widths(size)))
    forward = sum(2 * size.batch * i * o for i, o in layers)
    backward = 2 * forward - 2 * size.batch * layers[0][0] * layers[0][1]  # the input needs no gradient
    return size.critics * (forward + backward) + target_critics * forward


def _widths(size) -> tuple[int, ...]:
    if size.discrete:
        return (size.inputs, size.hidden, size.hidden, size.actions)
    return (size.inputs + size.actions, size.hidden, size.hidden, 1)


def critics_of(learner, batch):
    """A block of critic updates, with the next policies that they need and without the actor."""
    minibatches = [learner._minibatch(batch, number) for number in range(len(batch.reward))]

    def update() -> None:
        ahead = learner._next_policies(minibatches)
        for number, (minibatch, policy) in enumerate(zip(minibatches, ahead, strict=True)):
            learner._update_critics(minibatch, policy, number)
            learner._update_target()

    return update


def products_of(size):
    """The matrix products of one small update, and nothing else."""
    widths = _widths(size)
    layers = [torch.randn(size.critics, i, o) for i, o in pairwise(widths)]
    inputs = [torch.randn(size.critics, size.batch, i) for i in widths]

    def products() -> None:
        for _ in ("target", "critics"):
            for x, weight in zip(inputs, layers, strict=False):
                torch.bmm(x, weight)
        for number, weight in enumerate(layers):
            torch.bmm(inputs[number].mT, inputs[number + 1])
            if number:
                torch.bmm(inputs[number + 1], weight.mT)

    return products


def roofline(console: Console, rounds: int) -> None:
    """The share of the speed of matrix products that updates reach."""
    small, large, block = SIZES["small"], SIZES["large"], 5
    left, right = torch.randn(2, large.critics, large.hidden, large.hidden)
    calls, flops = {}, {}
    for name, compiled in (("", False), (", compiled", True)):
        learner, batch = learner_of(small, compiled=compiled), batch_of(small)
        calls[f"small update{name}"] = lambda learner=learner, batch=batch: learner.update(batch)
        learner = learner_of(large, compiled=compiled)
        calls[f"large critic update{name}"] = critics_of(learner, batch_of(large, block))
    calls["the products of the small update"] = products_of(small)
    calls["products 10 x 256^3"] = lambda: [left @ right for _ in range(20)]
    for name in calls:
        if "small" in name:
            flops[name] = flops_of(small, small.critics)
        elif "large" in name:
            flops[name] = block * flops_of(large, learner_of(large).config.target_subset)
    flops["products 10 x 256^3"] = 20 * large.critics * 2 * large.hidden**3
    seconds = interleaved(calls, rounds)
    speed = {name: flops[name] / times / 1e9 for name, times in seconds.items()}
    table = Table(
        "", "GFLOPS", "share of its products", title="Share of the roofline, 1 thread", title_justify="left"
    )
    for name, values in speed.items():
        reference = "the products of the small update" if "small" in name else "products 10 x 256^3"
        share = ratio(values, speed[reference])
        table.add_row(name, spread(values, 1), f"{share:.0%}")
        if name == "large critic update, compiled":
            target = verdict(share, "large critic update, compiled: share of the matrix products", least=0.8)
    console.print(table)
    console.print(f"  large, compiled: {target}")


def pixels(console: Console, rounds: int) -> None:
    """An update from pixels beside its convolutions alone: forward twice (target and critics) and backward once."""
    size = SIZES["small"]
    seen = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    config = learner_of(size).config
    learner = SoftDiscrete(config, seen, gym.spaces.Discrete(size.actions))
    images = np.random.default_rng(0).integers(0, 255, (1, size.batch, *seen.shape), dtype=np.uint8)
    batch = replace(batch_of(size), observation=images, next_observation=images)
    encoder = copy.deepcopy(learner.critic["encoder"])
    scaled = torch.as_tensor(images[0]).to(memory_format=torch.channels_last, dtype=torch.float32) / 255

    def convolutions() -> None:
        with torch.no_grad():
            encoder.linear(encoder._convolve(scaled))
        loss = encoder.linear(encoder._convolve(scaled)).sum()
        torch.autograd.grad(loss, [*encoder.parameters()])

    calls = {"update": lambda: learner.update(batch), "its convolutions alone": convolutions}
    seconds = interleaved(calls, max(rounds // 3, 1))
    share = ratio(seconds["its convolutions alone"], seconds["update"])
    console.print(
        f"an update from pixels 4x84x84, batch {size.batch}, channels_last: {spread(seconds['update'], MS)} ms; "
        f"its convolutions alone take {share:.0%} of that"
    )


def fused(console: Console, rounds: int) -> None:
    """The critics of five seeds in one update: what training seeds together could save at most."""
    size, calls = SIZES["small"], {}
    for name, compiled in (("", False), (", compiled", True)):
        for critics in (size.critics, 5 * size.critics):
            other = size._replace(critics=critics)
            learner, batch = learner_of(other, compiled=compiled), batch_of(other)
            calls[critics, name] = lambda learner=learner, batch=batch: learner.update(batch)
    seconds = interleaved(calls, rounds)
    for name in ("", ", compiled"):
        one, five = (seconds[critics, name] for critics in (size.critics, 5 * size.critics))
        console.print(
            f"small update{name}: {spread(one, MS)} ms; with the critics of five seeds {spread(five, MS)} ms, "
            f"{ratio(five, one):.2f} times that"
        )


def growth(console: Console, rounds: int) -> None:
    """Milliseconds of an update without compile against the ensemble and the minibatch."""
    for field, values in (("critics", (1, 2, 5, 10, 20)), ("batch", (1, 16, 128, 1024, 16384))):
        calls = {}
        for name, size in SIZES.items():
            for value in values:
                other = size._replace(**{field: value})
                learner, batch = learner_of(other), batch_of(other)
                calls[name, value] = lambda learner=learner, batch=batch: learner.update(batch)
        seconds = interleaved(calls, max(rounds // 3, 1))
        table = Table("", *map(str, values), title=f"ms an update against {field}", title_justify="left")
        for name in SIZES:
            table.add_row(name, *(spread(seconds[name, value], MS).split(" ")[0] for value in values))
        console.print(table)


def loop(console: Console, steps: int) -> None:
    """Fraction of time outside environment and updates, with the sizes of RLPD and a guard."""
    from rlpd_gx.loop.configure import configure
    from rlpd_gx.loop.run_folder import RunFolder
    from rlpd_gx.loop.task import Task
    from rlpd_gx.loop.train import Trainer

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few turns")
    rounds = 2 if parser.parse_args().quick else 15
    torch.set_num_threads(1)
    console = Console(width=110)
    console.print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with sources(console) as found:
        for size in SIZES:
            updates(console, size, found, rounds)
    roofline(console, rounds)
    pixels(console, rounds)
    fused(console, rounds)
    growth(console, rounds)
    loop(console, 150)
    keep("learner")


if __name__ == "__main__":
    main()
