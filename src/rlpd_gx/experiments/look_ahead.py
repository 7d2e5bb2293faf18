"""The effect of a guard in a game: the same policy and seeds, without it and with it."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from rlpd_gx.envs.atari import AtariEnv
from rlpd_gx.guardian import Guardian
from rlpd_gx.rules import Rule
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Action

ASK_EVERY = 5  # steps between states that whole safe sets are asked for
MOST_STEPS = 60  # for each critical state that is wanted
BLOCK_STEPS = 250  # scores are resampled in blocks: neighbouring steps are not independent

Policy = Callable[[Tree], Action]


@dataclass
class Arm:
    """One arm of the comparison: what happened in all its steps so far."""

    steps: int = 0
    events: int = 0
    episodes: int = 1
    corrections: int = 0
    inevitable: int = 0
    simulated_steps: int = 0
    score: list[float] = field(default_factory=list)  # of each block
    # of each verdict; of each step where there is no guard
    milliseconds: list[float] = field(default_factory=list)


def play(
    env: AtariEnv,
    policy: Policy,
    guardian: Guardian | None,
    seed: int,
    enough: Callable[[Arm], bool],
    tell: Callable[[Arm], None] = lambda arm: None,
) -> Arm:
    """Play whole games one after the other, each with its own seed, until `enough`."""
    arm = Arm()
    observation, _ = env.reset(seed=seed)
    while not enough(arm):
        action = policy(observation)
        start = time.process_time()
        if guardian is not None:
            verdict = guardian.certify(env, action)
            action = verdict.action
            arm.milliseconds.append(1000 * (time.process_time() - start))
            arm.corrections += verdict.corrected
            arm.inevitable += verdict.inevitable
        observation, reward, terminated, truncated, info = env.step(action)
        if guardian is None:
            arm.milliseconds.append(1000 * (time.process_time() - start))
        if arm.steps % BLOCK_STEPS == 0:
            arm.score.append(0.0)
        arm.score[-1] += float(reward)
        arm.events += info["unsafe_event"]
        arm.steps += 1
        if terminated or truncated:
            observation, _ = env.reset(seed=seed + arm.episodes)
            arm.episodes += 1
        tell(arm)
    return arm


def summary(arm: Arm, seed: int = 0) -> Json:
    """The numbers of an arm, with 95% intervals: exact Poisson for events, block bootstrap for scores."""
    from scipy.stats import chi2

    k, thousands = arm.events, arm.steps / 1000
    low = chi2.ppf(0.025, 2 * k) / 2 if k else 0.0
    high = chi2.ppf(0.975, 2 * k + 2) / 2
    whole = np.array(arm.score[: arm.steps // BLOCK_STEPS]) * (1000 / BLOCK_STEPS)
    drawn = np.random.default_rng(seed).choice(whole, (2000, len(whole))).mean(axis=1)
    counts = {k: v for k, v in asdict(arm).items() if isinstance(v, int)}
    return {
        **counts,
        "events_per_1000": (k + 0.5) / thousands,
        "events_per_1000_interval": [low / thousands, high / thousands],
        "score_per_1000": sum(arm.score) / thousands,
        "score_per_1000_interval": np.quantile(drawn, [0.025, 0.975]).tolist(),
        "correction_share": arm.corrections / arm.steps,
        "inevitable_share": arm.inevitable / arm.steps,
        "simulated_steps_per_step": arm.simulated_steps / arm.steps,
        "milliseconds_median": float(np.median(arm.milliseconds)),
        "milliseconds_mean": float(np.mean(arm.milliseconds)),
        "milliseconds_95th_percentile": float(np.quantile(arm.milliseconds, 0.95)),
    }


def times_fewer(without: Arm, guarded: Arm) -> tuple[float, float, float]:
    """How many times lower the rate of events is under the guard, and the exact 95% interval of it.

    Given their sum, the guarded events are binomial with odds (ratio of the rates) x (ratio of the steps).
    """
    from scipy.stats import beta

    total, exposure = without.events + guarded.events, guarded.steps / without.steps
    high = 1.0 if guarded.events == total else float(beta.ppf(0.975, guarded.events + 1, without.events))
    low = 0.0 if guarded.events == 0 else float(beta.ppf(0.025, guarded.events, without.events + 1))
    best = float("inf") if low == 0 else exposure * (1 - low) / low
    return (
        exposure * (without.events + 0.5) / (guarded.events + 0.5),
        exposure * (1 - high) / high,
        best,
    )


def play_without(
    env: AtariEnv,
    policy: Policy,
    *,
    seed: int,
    events: int,
    min_steps: int,
    max_steps: int,
    tell: Callable[[str, Arm], None] = lambda name, arm: None,
) -> Arm:
    """Play without a guard until enough events were seen."""

    def seen(arm: Arm) -> bool:
        return arm.steps >= max_steps or (arm.events >= events and arm.steps >= min_steps)

    return play(env, policy, None, seed, seen, lambda arm: tell("without", arm))


def compare(
    env: AtariEnv,
    policy: Policy,
    without: Arm,
    guardian: Guardian,
    simulated_steps: Callable[[], int],
    *,
    seed: int,
    guarded_steps: int | None = None,
    tell: Callable[[str, Arm], None] = lambda name, arm: None,
) -> Json:
    """Play with a guard for as many steps as without, or for `guarded_steps`; both arms begin with the same games."""
    most = without.steps if guarded_steps is None else min(without.steps, guarded_steps)
    guarded = play(
        env, policy, guardian, seed, lambda arm: arm.steps >= most, lambda arm: tell("guarded", arm)
    )
    guarded.simulated_steps = simulated_steps()
    fewer, low, high = times_fewer(without, guarded)
    return {
        "without": summary(without),
        "guarded": summary(guarded),
        "times_fewer": fewer,
        "times_fewer_interval": [low, None if np.isinf(high) else high],
    }


def agreement(env: AtariEnv, ram: Rule, look_ahead: Rule, states: int, seed: int) -> Json:
    """RAM rules beside look-ahead's whole safe sets, on critical states: where it allows some actions, not all.

    States are those of random play under the RAM rules, so that later parts of a game are among them. Recall is the
    share of look-ahead's forbidden actions that RAM rules forbid, precision that of theirs which it forbids too.
    """
    quick = Guardian(env.action_space, ram, embedding=env.embedding)
    whole = Guardian(env.action_space, look_ahead, embedding=env.embedding)
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    both = theirs = ours = critical = steps = 0
    while critical < states and steps < MOST_STEPS * states:
        by_ram = quick.safe_sets([env])
        verdict = quick.certify(env, int(rng.integers(env.action_space.n)))  # type: ignore[attr-defined]
        if steps % ASK_EVERY == 0:
            by_look_ahead = whole.safe_sets([env])
            allowed, seen = (np.asarray(s.allowed)[0] for s in (by_ram, by_look_ahead))  # type: ignore[union-attr]
            if seen.any() and not seen.all():
                critical += 1
                both += int((~allowed & ~seen).sum())
                ours += int((~allowed).sum())
                theirs += int((~seen).sum())
        *_, terminated, truncated, _ = env.step(verdict.action)
        steps += 1
        if terminated or truncated:
            env.reset(seed=seed + steps)
    return {
        "critical_states": critical,
        "steps": steps,
        "forbidden_by_look_ahead": theirs,
        "forbidden_by_ram": ours,
        "recall": both / theirs if theirs else None,
        "precision": both / ours if ours else None,
    }
