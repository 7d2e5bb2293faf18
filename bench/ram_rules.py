"""How long RAM rules take for all actions of a state, both RAM images read afresh: python -m bench.ram_rules

States are of random play. Each is asked five times and the least counts, since the machine may be busy.
"""

import time

import numpy as np

from rlpd_gx.envs import atari

STEPS, REPEATS = 200, 5


def microseconds(game: str) -> list[float]:
    """Of every other state."""
    env = atari.make(game)
    rules = atari.RamRules(env).parts
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    found = []
    for step in range(STEPS):
        least = np.inf
        for _ in range(REPEATS if step % 2 == 0 else 0):
            ram, was = env.ram().copy(), env.previous_ram().copy()  # nothing is remembered of copies
            start = time.perf_counter()
            for rule in rules:
                rule.margins(ram, was)  # type: ignore[attr-defined]
            least = min(least, 1e6 * (time.perf_counter() - start))
        if step % 2 == 0:
            found.append(least)
        if env.step(int(rng.integers(len(env.actions))))[2]:
            env.reset()
    return found


def main() -> None:
    medians = []
    for game in atari.GAMES:
        times = microseconds(game)
        medians.append(np.median(times))
        print(f"{game:16} median {np.median(times):6.1f}, 90% {np.quantile(times, 0.9):6.1f} microseconds")
    quick = sum(median <= 20 for median in medians)
    print(f"median of the games' medians: {np.median(medians):.1f} microseconds; at most 20 in {quick} games")


if __name__ == "__main__":
    main()
