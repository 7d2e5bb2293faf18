"""Certified actions by the million: does every executed action satisfy the rules, in exact arithmetic?

    python -m torture --only soak
    python -m torture.soak --batched 100000000 --single 1000000 --hostile 1000000 --out FILE

The second form counts instead of timing, reports every minute on stderr and continues from FILE if it exists.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import rlpd_gx as gx
from rlpd_gx.files import write_json
from torture import Row
from torture._exact_checker import ROOM, violations, witness
from torture._rule_cases import Case, Part, hostile, ordinary

BATCH = {"batched": 50_000, "single": 64, "hostile": 256}
PROMISES = {
    "batched": "ordinary rules, batched: every executed action satisfies them exactly",
    "single": "ordinary rules, one by one and in environments: the same",
    "hostile": "hostile rules and proposals: the same wherever the set has room",
    "inevitable": "a set called empty is empty",
}
SHARES = {"batched": 0.5, "single": 0.2, "hostile": 0.3}
KEPT = 50  # broken lines kept of each part


@dataclass
class Counts:
    """What one part has seen so far; `batch` is the next to draw, so a run can be resumed."""

    batch: int = 0
    tried: int = 0
    broken: int = 0
    inevitable: int = 0
    false_inevitable: int = 0
    fallback: int = 0
    thin: int = 0  # executed within the tolerance, since the set has no room
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    """Fallbacks of each kind of case."""


def attack(part: str, seed: int, counts: Counts, limit: int | None = None) -> None:
    """Draw the next batch of a part, certify it and count; `limit`: at most this many actions."""
    start = time.perf_counter()
    index = counts.batch
    rng = np.random.default_rng([seed, list(BATCH).index(part), index])
    draw = hostile if part == "hostile" else ordinary
    case = draw(rng, BATCH[part])
    if limit is not None and limit < len(case):
        case = case[slice(0, limit)]
    where = f"seed {seed} part {part} batch {index} ({case.name})"
    actions, status = one_by_one(case, index) if part == "single" else batched(case)
    count(case, actions, status, counts, where)
    counts.batch += 1
    counts.seconds += time.perf_counter() - start


def count(case: Case, actions: np.ndarray, status: np.ndarray, counts: Counts, where: str) -> None:
    """Judge what was executed; actions [n, d], status [n]: allowed, projected, fallback, inevitable, stopped."""
    seen = Counter(status.tolist())
    counts.tried += len(case)
    counts.inevitable += seen["inevitable"]
    failed = seen["fallback"] + seen["stopped"]
    counts.fallback += failed
    if failed:
        counts.by_name[case.name] = counts.by_name.get(case.name, 0) + failed
    for i in violations(case, actions):
        if status[i] in ("inevitable", "stopped"):
            continue  # no allowed action was known, or nothing was executed
        if case.name != "ordinary" and witness(case, int(i), ROOM) is None:
            counts.thin += 1
            continue
        counts.broken += 1
        _note(counts, f"{where} row {i}: {status[i]}, executed {actions[i].tolist()}")
    for i in np.flatnonzero(status == "inevitable"):
        allowed = witness(case, int(i))
        if allowed is not None:
            counts.false_inevitable += 1
            _note(counts, f"{where} row {i}: inevitable, but {allowed.tolist()} is allowed")


def _note(counts: Counts, line: str) -> None:
    if len(counts.lines) < KEPT:
        counts.lines.append(line)


def self_test() -> None:
    """The checker catches what is planted: an excess that floating point does not see, and a false "inevitable"."""
    w, c, low = np.ones((3, 2)), np.ones(3), -np.ones(2)
    inside, above = np.full((3, 2), 0.5), np.nextafter(0.5, 1.0)
    case = Case("ordinary", np.float64, low, -low, [[Part("l1", w, c)]], inside, 2 * inside)
    executed = np.array([[0.5, 0.5], [0.5, above], [1.0, 1.0]])
    counts = Counts()
    count(case, executed, np.array(["projected", "projected", "inevitable"]), counts, "planted")
    if (executed[1].sum() > 1, counts.broken, counts.false_inevitable) != (False, 1, 1):
        raise SystemExit(f"the checker of the soak is broken: it saw {counts}")


# --- ways of asking the Guardian ----------------------------------------------------------------------------


def batched(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Actions and statuses of a whole batch; if one member stops the batch, each one alone."""
    guardian = gx.Guardian(case.space, case.rule(), fallback=lambda s: s["inside"])
    try:
        verdicts = guardian.certify_batch(case.states, case.proposed)
    except gx.StopEpisode:
        return _alone(case, guardian)
    return verdicts.action, np.array([str(s) for s in verdicts.status])


def _alone(case: Case, guardian: gx.Guardian) -> tuple[np.ndarray, np.ndarray]:
    actions, status = case.proposed.copy(), []
    for i, state in enumerate(_rows(case)):
        try:
            verdict = guardian.certify(state, case.proposed[i])
        except gx.StopEpisode:
            status.append("stopped")
            continue
        actions[i] = verdict.action
        status.append(str(verdict.status))
    return actions, np.array(status)


def _rows(case: Case) -> Iterator[dict[str, np.ndarray]]:
    states = case.states
    return ({k: v[i] for k, v in states.items()} for i in range(len(case)))


def one_by_one(case: Case, index: int) -> tuple[np.ndarray, np.ndarray]:
    """The same by single verdicts, an environment or a vector environment, every other time with an audit file."""
    with tempfile.TemporaryDirectory() as folder:
        audit = str(Path(folder) / "audit.jsonl") if index % 2 else None
        options: dict[str, Any] = {"fallback": lambda s: s["inside"], "audit": audit}
        way = (index // 2) % 3
        if way == 0:
            return _alone(case, gx.Guardian(case.space, case.rule(batched=bool(index % 5)), **options))
        if way == 1:
            return _in_environment(case, options)
        return _in_vector_environment(case, options)


class Recorder(gym.Env):
    """Each step shows the next state and keeps the action it was given."""

    def __init__(self, case: Case) -> None:
        self.action_space, self.observation_space = case.space, gym.spaces.Discrete(len(case) + 1)
        self.executed: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        return len(self.executed), {}

    def step(self, action: np.ndarray) -> tuple[int, float, bool, bool, dict]:
        self.executed.append(np.array(action))
        return len(self.executed), 0.0, False, False, {}


def _in_environment(case: Case, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    states, recorder = list(_rows(case)), Recorder(case)
    env = gx.GuardedEnv(
        recorder, case.rule(), state=lambda env, observation, info: states[observation], **options
    )
    env.reset()
    status = [str(env.step(proposed)[4]["guardian"].status) for proposed in case.proposed]
    env.close()
    return np.array(recorder.executed), np.array(status)


class VectorRecorder(gym.vector.VectorEnv):
    """Eight recorders side by side."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, case: Case, num_envs: int) -> None:
        self.num_envs, self.step_number = num_envs, 0
        self.single_action_space, self.single_observation_space = (
            case.space,
            gym.spaces.Discrete(len(case) + num_envs),
        )
        self.action_space = gym.vector.utils.batch_space(case.space, num_envs)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.executed: list[np.ndarray] = []

    def _observations(self) -> np.ndarray:
        return self.step_number * self.num_envs + np.arange(self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return self._observations(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        self.executed.extend(np.array(actions))
        self.step_number += 1
        none = np.zeros(self.num_envs, dtype=bool)
        return self._observations(), np.zeros(self.num_envs), none, none, {}


def _in_vector_environment(case: Case, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    num_envs = 8 if len(case) % 8 == 0 else 1
    recorder, states = VectorRecorder(case, num_envs), case.states
    env = gx.GuardedVectorEnv(
        recorder,
        case.rule(),
        state=lambda env, rows, infos: {k: v[rows] for k, v in states.items()},
        **options,
    )
    env.reset()
    status: list[str] = []
    for proposed in case.proposed.reshape(-1, num_envs, len(case.low)):
        status += [str(v.status) for v in env.step(proposed)[4]["guardian"]]
    env.close()
    return np.array(recorder.executed), np.array(status)


# --- running ------------------------------------------------------------------------------------------------


def run(seconds: float, seed: int) -> list[Row]:
    """The attack for a given time."""
    self_test()
    parts = {part: Counts() for part in BATCH}
    for part, counts in parts.items():
        while counts.seconds < SHARES[part] * seconds:
            attack(part, seed, counts)
    return rows(parts)


def rows(parts: dict[str, Counts]) -> list[Row]:
    """The counts as rows of the table."""
    table = []
    for part, counts in parts.items():
        failed = f"{counts.fallback:,} not converged ({counts.fallback / max(counts.tried, 1):.4%})"
        thin = f", {counts.thin:,} within the tolerance (no room)" if part == "hostile" else ""
        by_name = "".join(f"; {name} {n:,}" for name, n in sorted(counts.by_name.items()))
        lines = [line for line in counts.lines if ": inevitable, but" not in line]
        lines += ["..."] * (counts.broken - len(lines))
        held = counts.tried - counts.broken
        table.append(Row(PROMISES[part], counts.tried, held, lines, failed + thin + by_name))
    total, wrong = (
        sum(getattr(c, name) for c in parts.values()) for name in ("inevitable", "false_inevitable")
    )
    lines = [line for c in parts.values() for line in c.lines if ": inevitable, but" in line]
    lines += ["..."] * (wrong - len(lines))
    return [*table, Row(PROMISES["inevitable"], total, total - wrong, lines)]


def run_counts(goals: dict[str, int], seed: int, out: Path | None, say: Callable[[str], None]) -> list[Row]:
    """The attack for given numbers of actions; continues from what `out` holds."""
    self_test()
    parts = {part: Counts() for part in BATCH}
    if out is not None and out.exists():
        stored = json.loads(out.read_text())
        if stored["seed"] != seed:
            raise SystemExit(f"{out} was made with seed {stored['seed']}; use that seed or another file")
        parts = {part: Counts(**stored["parts"][part]) for part in BATCH}

    def save() -> None:
        if out is not None:
            kept = {part: asdict(counts) for part, counts in parts.items()}
            write_json(out, {"seed": seed, "parts": kept, "rows": [asdict(row) for row in rows(parts)]})

    last = time.monotonic()
    for part, counts in parts.items():
        while counts.tried < goals[part]:
            attack(part, seed, counts, goals[part] - counts.tried)
            if time.monotonic() - last >= 60:
                last = time.monotonic()
                save()
                rate = counts.tried / counts.seconds
                say(f"{part}: {counts.tried:,} of {goals[part]:,}, {counts.broken} broken, {rate:,.0f}/s")
    save()
    return rows(parts)


def main() -> int:
    """Run by counts. The exit code is 1 if anything broke."""
    parser = argparse.ArgumentParser(prog="python -m torture.soak", description=__doc__.split("\n")[0])
    for part in BATCH:
        parser.add_argument(f"--{part}", type=int, default=0, help=f"{part} actions to certify")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="result file; an existing one is continued")
    options = parser.parse_args()
    goals = {part: getattr(options, part) for part in BATCH}
    table = run_counts(
        goals, options.seed, options.out, lambda line: print(line, file=sys.stderr, flush=True)
    )
    for row in table:
        print(f"{row.promise}: {row.tried:,} tried, {len(row.broken):,} broken. {row.note}")
        print("".join(f"  {line}\n" for line in row.broken[:10]), end="")
    return int(any(row.broken for row in table))


if __name__ == "__main__":
    sys.exit(main())
