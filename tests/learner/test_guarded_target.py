"""The guarded target and the actor's loss against slow references that loop over states and actions."""

import itertools
import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from batches import batch
from hypothesis import given
from hypothesis import strategies as st

import rlpd_gx as gx
from rlpd_gx.learner import LearnerConfig, SacContinuous, SacDiscrete, SoftDiscrete
from rlpd_gx.learner.sac_continuous import NextActions
from rlpd_gx.safe_sets import decode
from rlpd_gx.types import Batch, SpanSteps

N, B, OBS = 5, 24, 4
SPACE = gym.spaces.Box(-1, 1, (OBS,), np.float32)
EMBEDDING = np.array([[0.0, 0], [1, 0], [0, 1], [2, 0], [0, 3]])
CONFIG = LearnerConfig(
    ensemble_size=3, target_subset=0, hidden_sizes=(16, 16), temperature=0.3, backup="renormalise", actor="masked",
    backup_entropy="add", policy_tau=1.0,
)  # fmt: skip


def _next_value(learner: Any, features: Any, code: Any) -> Any:
    """The guarded soft value [B] under the target critics."""
    if isinstance(learner, SoftDiscrete):
        return learner._soft_value(features, learner.guarded.allowed(code), learner._subset())[0]
    return learner._soft_value(features, learner._next_policy(features, code), learner._subset())


def _masks(generator: np.random.Generator) -> gx.Mask:
    """All kinds: everything, one action, nothing tested, nothing allowed, partly tested, random."""
    allowed = generator.random((B, N)) < 0.5
    tested = generator.random((B, N)) < 0.8
    allowed[0], tested[0] = True, True
    allowed[1], tested[1] = np.arange(N) == 2, True
    tested[2] = False
    allowed[3], tested[3] = False, True
    allowed[4], tested[4] = True, np.arange(N) == 1
    return gx.Mask(allowed, tested)


def _discrete(config: LearnerConfig, masks: gx.Mask, embedding: Any = EMBEDDING) -> Any:
    space = gym.spaces.Discrete(N)
    kind = SoftDiscrete if config.actor == "auto" else SacDiscrete
    learner = kind(config, SPACE, space, safe_set_spec=masks.spec, embedding=embedding, seed=1)
    if isinstance(learner, SoftDiscrete):  # values that differ, as after some training
        for critic in (learner.critic, learner.target):
            critic["ensemble"].weights[-1].data.mul_(100)
    return learner


def _counted(mask: gx.Mask, row: int, untested: str) -> list[int]:
    """The actions a backup may count in a state."""
    found = [
        a for a in range(N)
        if mask.allowed[row, a] or (untested == "allowed" and not mask.tested[row, a])
    ]  # fmt: skip
    return found or list(range(N))


def _slow_policy(logits: list[float], counted: list[int], how: str, embedding: Any) -> list[float]:
    top = max(logits)
    raw = [math.exp(x - top) for x in logits]
    raw = [x / sum(raw) for x in raw]
    if how == "none":
        return raw
    if how == "renormalise":
        top = max(logits[a] for a in counted)
        weight = [math.exp(logits[a] - top) if a in counted else 0.0 for a in range(N)]
        return [w / sum(weight) for w in weight]
    policy = [0.0] * N
    for a in range(N):
        target = a
        if a not in counted:
            target = min(counted, key=lambda b: (_distance(a, b, embedding), b))
        policy[target] += raw[a]
    return policy


def _distance(a: int, b: int, embedding: Any) -> float:
    return float(np.linalg.norm(embedding[a] - embedding[b])) if embedding is not None else float(a != b)


def _logits(learner: Any, features: Any) -> Any:
    """Of the policy in the target: a soft one is that of the target critics."""
    if isinstance(learner, SoftDiscrete):
        return (learner.target["ensemble"](features).double().mean(dim=0) / 0.3).tolist()
    return learner.actor(features)[0].double().tolist()


def _entropy(policy: list[float]) -> float:
    return -sum(p * math.log(p) for p in policy if p > 0)


@pytest.mark.parametrize("actor", ["auto", "masked"])
@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize(
    ("backup", "sign", "untested"),
    list(
        itertools.product(
            ["renormalise", "project", "none"], ["add", "none", "subtract"], ["allowed", "forbidden"]
        )
    ),
)
def test_discrete_values(backup: Any, sign: Any, untested: Any, embedded: bool, actor: Any) -> None:
    generator = np.random.default_rng(0)
    masks, embedding = _masks(generator), EMBEDDING if embedded else None
    config = replace(CONFIG, backup=backup, backup_entropy=sign, untested=untested, actor=actor)
    learner = _discrete(config, masks, embedding)
    features = torch.tensor(generator.normal(size=(B, OBS)) * 3, dtype=torch.float32).clamp(-10, 10)
    with torch.no_grad():
        value = _next_value(learner, features, masks.encode())
        logits = _logits(learner, features)
        q = learner.target["ensemble"](features).min(dim=0).values.double().tolist()
    factor = {"add": 0.3, "none": 0.0, "subtract": -0.3}[sign]
    for row in range(B):
        policy = _slow_policy(logits[row], _counted(masks, row, untested), backup, embedding)
        expected = sum(p * x for p, x in zip(policy, q[row], strict=True)) + factor * _entropy(policy)
        assert value[row] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("actor", ["auto", "masked"])
@pytest.mark.parametrize("backup", ["renormalise", "project", "none"])
def test_tree_backup(backup: Any, actor: Any) -> None:
    """Later steps of a span count as far as the guarded policy would have taken them."""
    generator, most = np.random.default_rng(1), 3
    here = [_masks(generator) for _ in range(most)]
    after = _masks(generator)
    learner = _discrete(replace(CONFIG, backup=backup, actor=actor), after)

    def states() -> torch.Tensor:
        return torch.tensor(generator.normal(size=(B, OBS)) * 3, dtype=torch.float32).clamp(-10, 10)

    seen, following = [states() for _ in range(most)], states()
    action, length = generator.integers(N, size=(B, most)), generator.integers(1, most + 1, B)
    reward, discount = generator.uniform(0.1, 1, (2, B, most)).astype(np.float32)
    discount[7, 0] = 0.0  # the episode ended at once
    flags, none = torch.zeros(B, dtype=torch.bool), torch.zeros(B)
    minibatch = Batch(
        observation=seen[0],
        next_observation=following,
        executed_action=torch.tensor(action[:, 0]),
        proposed_action=torch.tensor(action[:, 0]),
        reward=none,
        discount=none,
        terminated=flags,
        truncated=flags,
        safe_set=here[0].encode(),
        next_safe_set=after.encode(),
        margin=none,
        unsafe_event=flags,
        is_online=~flags,
        row=torch.arange(B),
        span_length=torch.tensor(length),
        span_steps=SpanSteps(
            observation=torch.stack(seen, dim=1),
            safe_set=np.stack([mask.encode() for mask in here], axis=1),
            executed_action=torch.tensor(action),
            reward=torch.tensor(reward),
            discount=torch.tensor(discount),
        ),
    )
    with torch.no_grad():
        policy = [] if actor == "auto" else [learner._next_policy(following, after.encode())]
        target = learner._target(minibatch, *policy)
        logits = [_logits(learner, x) for x in (*seen, following)]
        q = [learner.target["ensemble"](x).min(dim=0).values.double().tolist() for x in (*seen, following)]

    def policy_and_value(k: int, mask: gx.Mask, row: int) -> tuple[list[float], float]:
        policy = _slow_policy(logits[k][row], _counted(mask, row, "allowed"), backup, EMBEDDING)
        value = sum(p * x for p, x in zip(policy, q[k][row], strict=True))
        return policy, value + 0.3 * _entropy(policy)

    for row in range(B):
        value = policy_and_value(most, after, row)[1]
        for k in reversed(range(length[row])):
            value = float(reward[row, k]) + float(discount[row, k]) * value
            if k:
                policy, local = policy_and_value(k, here[k], row)
                taken = action[row, k]
                value = local + policy[taken] * (value - q[k][row][taken])
        assert target[row] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("actor", ["raw", "masked", "projected"])
@pytest.mark.parametrize("value", ["mean", "min"])
def test_discrete_actor_loss(actor: Any, value: Any) -> None:
    generator = np.random.default_rng(0)
    masks = _masks(generator)
    learner = _discrete(replace(CONFIG, actor=actor, actor_value=value), masks)
    features = torch.tensor(generator.normal(size=(B, OBS)), dtype=torch.float32)
    loss, excess, _ = learner._actor_loss(features, masks.encode())
    excess = excess.detach()
    with torch.no_grad():
        logits = learner.actor(features)[0].double().tolist()
        every = learner.critic["ensemble"](features).double()
    q = (every.mean(dim=0) if value == "mean" else every.min(dim=0).values).tolist()
    total = 0.0
    for row in range(B):
        counted = _counted(masks, row, "allowed")
        raw = _slow_policy(logits[row], counted, "none", EMBEDDING)
        safe = _slow_policy(logits[row], counted, "renormalise", EMBEDDING)
        own = safe if actor == "masked" else raw
        executed = _slow_policy(logits[row], counted, "project", EMBEDDING) if actor == "projected" else own
        total += -sum(p * x for p, x in zip(executed, q[row], strict=True)) - 0.3 * _entropy(own)
        known = int(masks.allowed[row].sum())  # tested and allowed
        if known <= 1:
            assert excess[row].isnan()
        else:
            assert excess[row] == pytest.approx(_entropy(safe) - 0.3 * math.log(known), abs=1e-5)
    assert float(loss.detach()) == pytest.approx(total / B, abs=1e-5)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["raw", "masked", "projected"]))
def test_logits_of_any_size_leave_everything_finite(seed: int, actor: Any) -> None:
    generator = np.random.default_rng(seed)
    masks = _masks(generator)
    learner = _discrete(replace(CONFIG, actor=actor), masks)
    logits = torch.tensor(generator.uniform(-1e4, 1e4, (B, N)), dtype=torch.float32)
    learner.actor.weights[-1].data.zero_()
    learner.actor.biases[-1].data = logits[:1][:, None, :].clone()
    features = torch.zeros(B, OBS)
    for backup in ("renormalise", "project", "none"):
        learner.config = replace(learner.config, backup=backup)
        with torch.no_grad():
            assert _next_value(learner, features, masks.encode()).isfinite().all()
    loss, _, _ = learner._actor_loss(features, masks.encode())
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in learner.actor.parameters())


@pytest.mark.parametrize("actor", ["auto", "masked"])
def test_resampled_proposals_are_allowed_and_projected_ones_are_raw(actor: Any) -> None:
    masks = gx.Mask(np.tile(np.arange(N) == 2, (400, 1)))
    features = np.zeros((400, OBS), np.float32)
    resample = _discrete(replace(CONFIG, actor=actor, execution="resample"), masks)
    assert (resample.act(features, masks.encode()) == 2).all()
    assert len(np.unique(_discrete(replace(CONFIG, actor=actor), masks).act(features, masks.encode()))) > 1


@given(st.integers(0, 2**32 - 1), st.sampled_from(["renormalise", "project", "none"]))
def test_a_soft_learner_stays_finite_for_values_of_any_size(seed: int, backup: Any) -> None:
    generator = np.random.default_rng(seed)
    masks = _masks(generator)
    learner = _discrete(replace(CONFIG, actor="auto", backup=backup, clone_weight=(0.5,)), masks)
    for critic in (learner.critic, learner.target):
        critic["ensemble"].weights[-1].data.zero_()
        critic["ensemble"].biases[-1].data.uniform_(-1e4, 1e4, generator=learner.generator)
    seen = generator.normal(size=(2, B, OBS)).astype(np.float32)
    action, reward = generator.integers(N, size=B), generator.normal(size=B)
    data = batch(seen[0], action, reward, seen[1], np.full(B, 0.9), masks.encode(), masks.encode())
    data.is_online[...] = generator.random(B) < 0.5
    assert all(math.isfinite(value) for value in learner.update(data).values())
    assert all(p.isfinite().all() for p in learner.policy.parameters())


def test_an_untrained_soft_policy_is_uniform() -> None:
    learner = SoftDiscrete(
        CONFIG, SPACE, gym.spaces.Discrete(N), safe_set_spec=gx.Mask(np.ones((1, N), bool)).spec
    )
    with torch.no_grad():
        policy = learner.policy.logits(torch.randn(50, OBS)).softmax(dim=-1).numpy()
    assert policy == pytest.approx(np.full((50, N), 1 / N), abs=0.02)


def test_a_soft_policy_is_the_softmax_of_values_over_alpha() -> None:
    """Probabilities of sampled actions are exp(Q / alpha), normalised over the safe set."""
    allowed = np.array([True, False, True, True, False])
    masks = gx.Mask(np.tile(allowed, (20_000, 1)))
    learner = _discrete(replace(CONFIG, actor="auto", execution="resample"), masks)
    state = np.ones((1, OBS), np.float32)
    with torch.no_grad():
        q = learner.critic["ensemble"](torch.ones(1, OBS)).double().mean(dim=0)[0].numpy()
    weight = np.where(allowed, np.exp(q / 0.3), 0.0)
    drawn = learner.act(np.repeat(state, 20_000, axis=0), masks.encode())
    assert np.bincount(drawn, minlength=N) / 20_000 == pytest.approx(weight / weight.sum(), abs=0.02)
    best = np.where(allowed, q, -np.inf).argmax()
    assert learner.act(state, masks[:1].encode(), explore=False)[0] == best


# --- continuous ------------------------------------------------------------------------------------------

D = 2


def _continuous(config: LearnerConfig, sets: Any) -> SacContinuous:
    space = gym.spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32))
    return SacContinuous(config, SPACE, space, safe_set_spec=sets.spec, seed=1)


def _convex(generator: np.random.Generator) -> Any:
    box = gx.Box(np.array([-1.0, -2.0]), np.array([1.0, 2.0]))
    bound = np.where(generator.random(B) < 0.5, 2.0, 0.05)  # some so small that no sample lies inside
    return gx.Intersection(box, gx.WeightedL1(np.abs(generator.normal(size=(B, D))) + 0.5, bound))


@pytest.mark.parametrize(
    ("backup", "sign"),
    list(itertools.product(["renormalise", "project", "none"], ["add", "none", "subtract"])),
)
def test_continuous_values(backup: Any, sign: Any) -> None:
    generator = np.random.default_rng(3)
    sets = _convex(generator)
    config = replace(CONFIG, backup=backup, backup_entropy=sign)
    learner = _continuous(config, sets)
    learner.target_samples = 6
    features = torch.tensor(generator.normal(size=(B, OBS)), dtype=torch.float32)
    state = learner.generator.get_state()
    with torch.no_grad():
        value = _next_value(learner, features, sets.encode())
        learner.generator.set_state(state)
        draws, log_density = learner.policy.draw(features, 6 if backup == "renormalise" else 1)
    factor = {"add": 0.3, "none": 0.0, "subtract": -0.3}[sign]
    half = np.array([1.0, 2.0])
    kinds = set()
    for row in range(B):
        own = sets[row]
        samples = [draws[k, row].double().numpy() * half for k in range(len(draws))]
        density = [float(log_density[k, row]) for k in range(len(draws))]
        inside = [k for k, a in enumerate(samples) if own.contains(a.astype(np.float32))]
        if backup == "none":
            terms = [(samples[0], -density[0])]
        elif backup == "project" or not inside:
            terms = [(own.project(samples[0]), -density[0])]
        else:
            bonus = math.log(len(inside) / len(samples))
            terms = [(samples[k], -density[k] + bonus) for k in inside]
        kinds.add("outside" if not inside else "inside")
        total = 0.0
        for action, entropy in terms:
            joint = torch.cat([features[row], torch.tensor(action / half, dtype=torch.float32)])[None]
            with torch.no_grad():
                total += float(learner.target["ensemble"](joint).min()) + factor * entropy
        assert value[row] == pytest.approx(total / len(terms), abs=2e-4)
    assert kinds == {"outside", "inside"}


class WithoutLogZ(SacContinuous):
    """A broken learner: its entropy is that of the raw density over accepted samples."""

    def _next_policy(self, features: torch.Tensor, safe_set: Any) -> NextActions:
        policy = super()._next_policy(features, safe_set)
        assert self.safe_set_spec is not None
        inside = self.policy.contains(decode(safe_set, self.safe_set_spec), policy.action.transpose(0, 1))
        return policy._replace(uncertainty=policy.uncertainty - inside.float().mean(dim=0).log())


def _entropy_error(kind: type[SacContinuous], mean: float, std: float) -> float:
    """Distance of the entropy in the target to that of pi restricted to [low, high], by numerical integration."""
    low, high = -0.2, 0.7
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    count = 64
    sets = gx.Intersection(
        gx.Box(-np.ones(1), np.ones(1)), gx.Box(np.full((count, 1), low), np.full((count, 1), high))
    )
    learner = kind(CONFIG, SPACE, space, safe_set_spec=sets.spec, seed=0)
    learner.target_samples = 4000
    learner.actor.weights[-1].data.zero_()
    learner.actor.biases[-1].data = torch.tensor([[[mean, math.log(std)]]])
    learner.target["ensemble"].weights[-1].data.zero_()
    learner.target["ensemble"].biases[-1].data.zero_()
    with torch.no_grad():
        value = _next_value(learner, torch.zeros(count, OBS), sets.encode())
    a = np.linspace(low, high, 200_001)
    u = np.arctanh(a)
    pi = np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi)) / (1 - a**2)
    pi /= np.trapezoid(pi, a)
    return abs(float(value.mean()) / 0.3 + float(np.trapezoid(pi * np.log(pi), a)))


@pytest.mark.parametrize("mean", [-0.5, 0.0, 1.0])
@pytest.mark.parametrize("std", [0.3, 1.0])
def test_entropy_of_the_renormalised_density_is_the_integral(mean: float, std: float) -> None:
    """H(pi restricted to the safe set) = -E[log pi] + log Z; without log Z the comparison fails."""
    assert _entropy_error(SacContinuous, mean, std) < 0.01
    assert _entropy_error(WithoutLogZ, mean, std) > 0.1


@pytest.mark.parametrize("actor", ["raw", "masked", "projected"])
def test_the_continuous_actor_learns_where_it_may(actor: Any) -> None:
    """One step of gradient at a proposal outside: raw follows Q outwards, the others come back."""
    sets = gx.Intersection(
        gx.Box(-np.ones(1), np.ones(1)), gx.Box(np.full((8, 1), -1.0), np.full((8, 1), 0.1))
    )
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    config = replace(CONFIG, actor=actor, temperature=1e-6)
    learner = SacContinuous(config, SPACE, space, safe_set_spec=sets.spec, seed=0)
    learner.actor.weights[-1].data.zero_()
    learner.actor.biases[-1].data = torch.tensor([[[0.5, -5.0]]])
    loss, _, _ = learner._actor_loss(torch.zeros(8, OBS), sets.encode())
    loss.backward()
    assert learner.actor.biases[-1].grad is not None
    slope = float(learner.actor.biases[-1].grad[0, 0, 0])
    if actor == "raw":
        with torch.no_grad():
            ends = torch.tensor([[0.0] * OBS + [0.45], [0.0] * OBS + [0.47]])
            rises = learner.critic["ensemble"](ends).mean(dim=0)[:, 0].diff()
        assert (slope < 0) == (float(rises) > 0)
    else:
        assert slope > 0  # descending it moves the mean down, back to 0.1
