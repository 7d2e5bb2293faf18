"""What a look-ahead verdict costs: beside a plain look-ahead, and on both cores.

    python -m bench.lookahead

The plain one forgets its plan after each step and watches only the lives counter, to the depths of SPEC's probe.
The quick one simulates only where RAM rules see something coming.
Processor time is counted, so that neighbours on a shared machine matter less; steps a second are wall-clock.
"""

import argparse
import dataclasses
import os
import platform
import sys
import time

import gymnasium as gym
import numpy as np
from bench.timing import keep, verdict
from rich.console import Console
from rich.table import Table

import rlpd_gx as gx
from rlpd_gx.envs.atari import GAMES, AtariEnv, Lookahead, QuickLookahead, emulator_state, make

PLAIN_DEPTH = {"Seaquest": 40, "MsPacman": 32, "Qbert": 24, "Breakout": 20}
FORGOTTEN = {"simulated_steps": 0, "environments": []}


def parts(console, turns=400):
    """Milliseconds of what a simulated step is made of."""
    table = Table(title="A simulated step, microseconds of processor time", title_justify="left")
    for name in ("game", "4 frames", "state", "its bytes", "restore", "in all"):
        table.add_column(name, justify="left" if name == "game" else "right")
    for game in PLAIN_DEPTH:
        env = make(game)
        env.reset(seed=0)
        ale, model = env.ale, Lookahead(env).search.model
        state, place = ale.cloneState(), model.here(env)

        def timed(call):
            start = time.process_time()
            for _ in range(turns):
                call()
            return (time.process_time() - start) / turns * 1e6

        def frames(ale=ale, action=env.actions[0]):
            for _ in range(4):
                ale.act(action)

        calls = (frames, ale.cloneState, state.serialize, lambda: ale.restoreState(state))  # noqa: B023
        costs = [*map(timed, calls), timed(lambda: model.advance(place, 0))]  # noqa: B023
        table.add_row(game, *(f"{cost:.0f}" for cost in costs))
    console.print(table)


def play(env, rule, steps, forget=False):
    """Milliseconds of each verdict on a random policy, and unsafe events."""
    guardian = gx.Guardian(env.action_space, rule, embedding=env.embedding)
    env.reset(seed=0)
    chance, costs, events = np.random.default_rng(0), [], 0
    for _ in range(steps):
        start = time.process_time()
        verdict = guardian.certify(env, int(chance.integers(env.action_space.n)))
        costs.append(1000 * (time.process_time() - start))
        _, _, terminated, truncated, info = env.step(verdict.action)
        events += info["unsafe_event"]
        if terminated or truncated:
            env.reset()
        if forget:
            rule.restore_memory({**FORGOTTEN, "simulated_steps": rule.simulated_steps})
    return np.array(costs), events, rule.simulated_steps / steps


def verdicts(console, steps):
    table = Table(title=f"A verdict on a random policy, {steps} steps of each game", title_justify="left")
    for name in (
        "game",
        "look-ahead",
        "depth",
        "ms median",
        "ms mean",
        "simulated a step",
        "events",
        "target",
    ):
        table.add_column(name, justify="left" if name in ("game", "look-ahead", "target") else "right")
    for game, depth in PLAIN_DEPTH.items():
        unflagged = AtariEnv(dataclasses.replace(GAMES[game], dying=()))
        ours = make(game)
        for name, env, rule in (
            ("plain", unflagged, Lookahead(unflagged, depth, attempts=99)),
            ("ours", ours, Lookahead(ours)),
            ("ours, quick", ours, QuickLookahead(ours)),
        ):
            costs, events, simulated = play(env, rule, steps, forget=name == "plain")
            numbers = (f"{np.median(costs):.1f}", f"{costs.mean():.1f}", f"{simulated:.1f}", str(events))
            target = ""
            if name == "ours, quick":
                target = verdict(costs.mean(), f"look-ahead, {game}, quick: ms in the mean", most=5)
            table.add_row(game, name, str(rule.search.depth), *numbers, target)
    console.print(table)


def guarded_env():
    env = make("Seaquest")
    return gx.GuardedEnv(env, Lookahead(env), state=emulator_state, embedding=env.embedding)


def cores(console, steps):
    """Each environment with its guard in a process of its own."""
    rates = []
    for count in (1, 2):
        envs = gym.vector.AsyncVectorEnv([guarded_env] * count)
        envs.reset(seed=0)
        envs.action_space.seed(0)
        start = time.perf_counter()
        for _ in range(steps):
            envs.step(envs.action_space.sample())
        rates.append(count * steps / (time.perf_counter() - start))
        envs.close()
    console.print(
        f"Guarded Seaquest, one process for each environment: {rates[0]:.0f} steps/s with one, {rates[1]:.0f} with "
        f"two ({rates[1] / rates[0]:.2f} times), wall-clock, load of the machine {os.getloadavg()[0]:.1f}."
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    console = Console(width=110)
    console.print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    parts(console)
    verdicts(console, steps)
    cores(console, steps)
    keep("lookahead")


if __name__ == "__main__":
    sys.exit(main())
