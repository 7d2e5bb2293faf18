"""How fast a batch is sampled, beside stable-baselines3, cpprb, torchrl and a plain copy: `python -m bench.replay`.

All contenders hold the same steps and take turns in one process, in CPU time. Only ratios within a run mean something.
Who allocates much (SB3, pixels) depends on what malloc does with freed memory; glibc gives it out again with
`MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1000000000 python -m bench.replay`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import cpprb
import numpy as np
from bench.timing import interleaved, keep, ratio, spread, verdict
from gymnasium import spaces
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.buffers import ReplayBuffer

from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.samplers import Uniform
from rlpd_gx.replay.timeline import Layout, Timeline
from rlpd_gx.types import Batch, Transition

if TYPE_CHECKING:
    from torchrl.data import TensorDictReplayBuffer

BATCH, UPDATES, STACK, EPISODE_STEPS = 256, 20, 4, 500
PIXEL_STEPS, STATE_STEPS = 20_000, 100_000
ROUNDS, CALLS = 24, 6
ONE, NO = np.ones(1, np.float32), np.zeros(1, bool)
OURS = ("ours, online", "ours, half offline")
TARGETS = {"sb3": 1.5, "cpprb": 1.5, "torchrl": 1.5}

PIXELS = Layout(np.dtype((np.uint8, (84, 84))), np.dtype(np.int64), np.dtype((np.uint8, (18,))))
STATES = Layout(np.dtype((np.float32, (17,))), np.dtype((np.float32, (6,))), np.dtype((np.float32, (12,))))


def observation(layout: Layout, step: int) -> np.ndarray:
    """[1, ...] something that differs from step to step and touches every byte."""
    return np.full((1, *layout.observation.shape), step % 251, layout.observation.base)


def filled_ring(layout: Layout, steps: int, *, wrapped: bool) -> Ring:
    """A ring with about this many steps; wrapped, its seam lies in the middle."""
    rows = steps + steps // EPISODE_STEPS + 1
    ring = Ring(layout, rows)
    safe_set = np.zeros((1, *layout.safe_set.shape), layout.safe_set.base)
    action = np.zeros((1, *layout.action.shape), layout.action.base)
    for step in range(steps * 3 // 2 if wrapped else steps):
        if step % EPISODE_STEPS == 0:
            ring.begin(observation(layout, step), safe_set)
        ring.add(
            Transition(
                proposed_action=action,
                executed_action=action,
                reward=ONE,
                terminated=np.array([(step + 1) % EPISODE_STEPS == 0]),
                truncated=NO,
                margin=ONE,
                unsafe_event=NO,
                next_observation=observation(layout, step + 1),
                next_safe_set=safe_set,
                executed=~NO,
            )
        )
    return ring


def offline_data(layout: Layout, steps: int) -> Timeline:
    """The same steps as finished data."""
    ring = filled_ring(layout, steps, wrapped=False)
    rows = int(ring.extent.length[0])
    columns = ring.timeline.columns().items()
    return Timeline.from_columns({name: np.ascontiguousarray(column[:rows]) for name, column in columns})


def ours(ring: Ring, data: Timeline | None, updates: int, stack: int) -> Callable[[], Batch]:
    """Our sampler: online rows only, or half of them offline."""
    hybrid = Hybrid(
        online=ring,
        offline=data,
        sampler=Uniform(),
        generator=np.random.default_rng(0),
        batch_size=BATCH,
        updates=updates,
        stack=stack,
    )
    return lambda: hybrid.sample(1.0 if data is None else 0.5)


def contiguous(sample: Callable[[], Batch]) -> Callable[[], object]:
    """Ours, with s and s' copied apart, for a user who cannot take views."""

    def copied() -> object:
        batch = sample()
        return np.ascontiguousarray(batch.observation), np.ascontiguousarray(batch.next_observation), batch

    return copied


def peer_steps(layout: Layout, steps: int, stack: int):
    """(s, s', end of episode) as the peers want them: with whole stacks."""
    for step in range(steps):
        frames = [observation(layout, max(step - back, 0))[0] for back in range(stack, -1, -1)]
        if stack == 1:
            yield frames[-2], frames[-1], (step + 1) % EPISODE_STEPS == 0
        else:
            yield np.stack(frames[:-1]), np.stack(frames[1:]), (step + 1) % EPISODE_STEPS == 0


def shapes(layout: Layout, stack: int) -> tuple[tuple[int, ...], np.dtype]:
    shape = layout.observation.shape
    return ((stack, *shape) if stack > 1 else shape), layout.observation.base


def sb3(layout: Layout, steps: int, stack: int, *, compact: bool) -> ReplayBuffer:
    shape, dtype = shapes(layout, stack)
    action = spaces.Discrete(6) if layout is PIXELS else spaces.Box(-1, 1, layout.action.shape)
    buffer = ReplayBuffer(
        steps,
        spaces.Box(0, 255, shape, dtype.type),
        action,
        device="cpu",
        optimize_memory_usage=compact,
        handle_timeout_termination=not compact,
    )
    zero = np.zeros((1, *(layout.action.shape or (1,))), layout.action.base)
    for here, there, end in peer_steps(layout, steps, stack):
        buffer.add(here[None], there[None], zero, np.ones(1), np.array([end]), [{}])
    return buffer


def cpp(layout: Layout, steps: int, stack: int, *, compact: bool, full: bool = False) -> cpprb.ReplayBuffer:
    """With the usual five fields or, if `full`, with all that our rows carry."""
    shape, dtype = shapes(layout, stack)
    fields = {
        "obs": {"shape": shape, "dtype": dtype},
        "act": {"shape": layout.action.shape or 1},
        "rew": {},
        "done": {},
    }
    code = {"shape": layout.safe_set.shape, "dtype": layout.safe_set.base}
    flag = {"dtype": np.bool_}
    if full:
        fields |= {"proposed": fields["act"], "safe": code, "next_safe": code, "margin": {}}
        fields |= {"truncated": flag, "unsafe": flag}
    if compact:
        buffer = cpprb.ReplayBuffer(steps, fields, next_of="obs", stack_compress="obs" if stack > 1 else None)
    else:
        buffer = cpprb.ReplayBuffer(steps, fields | {"next_obs": fields["obs"]})
    zeros = {name: np.zeros(field.get("shape", 1)) for name, field in fields.items()}
    for here, there, end in peer_steps(layout, steps, stack):
        buffer.add(**zeros | {"obs": here, "next_obs": there, "done": end})
        if end:
            buffer.on_episode_end()
    return buffer


def torch_rl(layout: Layout, steps: int, stack: int) -> TensorDictReplayBuffer:
    """Whole stacks, in memory, drawn uniformly, with the usual fields."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(steps), batch_size=BATCH)
    action = torch.zeros(EPISODE_STEPS, *layout.action.shape)
    number = torch.ones(EPISODE_STEPS, 1)
    rows = peer_steps(layout, steps, stack)
    for _ in range(steps // EPISODE_STEPS):
        here, there, end = zip(*(next(rows) for _ in range(EPISODE_STEPS)), strict=True)
        after = {
            "observation": torch.as_tensor(np.stack(there)),
            "reward": number,
            "terminated": torch.tensor(end)[:, None],
        }
        fields = {"observation": torch.as_tensor(np.stack(here)), "action": action, "next": after}
        buffer.extend(TensorDict(fields, [EPISODE_STEPS]))
    return buffer


def report(
    console: Console, title: str, contenders: dict[str, Callable[[], object]], targets: dict[str, float]
) -> None:
    def several(call: Callable[[], object]) -> Callable[[], None]:
        def calls() -> None:
            for _ in range(CALLS):
                kept = call()
                del kept

        return calls

    seconds = interleaved({name: several(call) for name, call in contenders.items()}, ROUNDS)
    table = Table("contender", "us (quartiles)", *(f"against {name}" for name in OURS), title=title)
    for name, times in seconds.items():
        ratios = [f"{ratio(times, seconds[own]):.2f}x" for own in OURS]
        table.add_row(name, spread(times, CALLS * 1e-6), *ratios)
    console.print(table)
    for peer, target in targets.items():
        for own in OURS:
            among = [ratio(times, seconds[own]) for name, times in seconds.items() if name.startswith(peer)]
            if among:
                what = f"{title.split(' (')[0]}: the fastest {peer} / {own}"
                console.print(f"  {what}: {min(among):.2f}, {verdict(min(among), what, least=target)}")


def pixels(console: Console) -> None:
    stacks = np.ones((BATCH, 2 * STACK, 84, 84), np.uint8)
    target = np.empty_like(stacks)
    ring, data = filled_ring(PIXELS, PIXEL_STEPS, wrapped=True), offline_data(PIXELS, PIXEL_STEPS)
    plain, compact = (sb3(PIXELS, PIXEL_STEPS, STACK, compact=c) for c in (False, True))
    cpp_plain, cpp_compact = (cpp(PIXELS, PIXEL_STEPS, STACK, compact=c) for c in (False, True))
    contenders = {
        "ours, online": ours(ring, None, 1, STACK),
        "ours, half offline": ours(ring, data, 1, STACK),
        "ours, online, s and s' copied apart": contiguous(ours(ring, None, 1, STACK)),
        "sb3": lambda: plain.sample(BATCH),
        "sb3, optimize_memory_usage": lambda: compact.sample(BATCH),
        "cpprb": lambda: cpp_plain.sample(BATCH),
        "cpprb, next_of and stack_compress": lambda: cpp_compact.sample(BATCH),
        "copy of s and s', new memory": stacks.copy,
        "copy of s and s', same memory": lambda: np.copyto(target, stacks),
    }
    if find_spec("torchrl"):
        large = torch_rl(PIXELS, PIXEL_STEPS, STACK)
        contenders["torchrl"] = large.sample
    title = f"pixel stacks 84x84x{STACK}, B={BATCH}, s and s'"
    report(console, title, contenders, TARGETS | {"copy": 1 / 2.5})


def states(console: Console) -> None:
    ring, data = filled_ring(STATES, STATE_STEPS, wrapped=True), offline_data(STATES, STATE_STEPS)
    plain, compact = (sb3(STATES, STATE_STEPS, 1, compact=c) for c in (False, True))
    cpp_plain, cpp_compact = (cpp(STATES, STATE_STEPS, 1, compact=c) for c in (False, True))
    cpp_full = cpp(STATES, STATE_STEPS, 1, compact=False, full=True)
    dicts = torch_rl(STATES, STATE_STEPS, 1) if find_spec("torchrl") else None
    for updates in (1, UPDATES):
        rows = updates * BATCH
        contenders = {
            "ours, online": ours(ring, None, updates, 1),
            "ours, half offline": ours(ring, data, updates, 1),
            "sb3": partial(plain.sample, rows),
            "sb3, optimize_memory_usage": partial(compact.sample, rows),
            "cpprb": partial(cpp_plain.sample, rows),
            "cpprb, next_of": partial(cpp_compact.sample, rows),
            "full cpprb, with all our fields": partial(cpp_full.sample, rows),
        }
        if dicts is not None:
            contenders["torchrl"] = partial(dicts.sample, rows)
        title = f"states of 17 numbers, [{updates}, {BATCH}] (peers: one call for {rows} rows)"
        report(console, title, contenders, TARGETS | {"full cpprb": 1.5})


def main() -> None:
    console = Console(width=110)
    if not find_spec("torchrl"):
        console.print("not installed: torchrl (`make bench` builds an environment with all peers)")
    pixels(console)
    states(console)
    keep("replay")


if __name__ == "__main__":
    main()
