"""Joint actions beyond what can be listed: targets, actor and probabilities against loops over every joint action."""

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from batches import batch

import rlpd_gx as gx
from rlpd_gx.errors import GxError
from rlpd_gx.learner import LearnerConfig, SacFactored, sac_factored
from rlpd_gx.trees import leaves
from rlpd_gx.types import Batch, SpanSteps

SIZES, B, OBS = (3, 2, 4), 12, 3
JOINT = list(itertools.product(*(range(n) for n in SIZES)))
SPACE = gym.spaces.Box(-1, 1, (OBS,), np.float32)
ACTIONS = gym.spaces.MultiDiscrete(SIZES)
CONFIG = LearnerConfig(
    ensemble_size=3, target_subset=0, hidden_sizes=(16, 16), temperature=0.3, backup_entropy="add", normalise=False
)  # fmt: skip


def _masks(seed: int, count: int = B) -> gx.ProductMask:
    """Random ones, everything, a single joint action, and a component in which nothing is allowed."""
    allowed = np.random.default_rng(seed).random((count, sum(SIZES))) < 0.6
    allowed[0] = True
    allowed[1] = [0, 1, 0, 0, 1, 0, 0, 0, 1]
    allowed[2] = [1, 1, 0, 0, 0, 1, 0, 0, 1]
    return gx.ProductMask(allowed, SIZES)


def _learner(spec: Any = None, **settings: Any) -> SacFactored:
    return SacFactored(replace(CONFIG, **settings), SPACE, ACTIONS, safe_set_spec=spec, seed=1)


def _features(seed: int) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(B, OBS)), dtype=torch.float32)


def _counted(masks: gx.ProductMask, row: int) -> list[list[int]]:
    """The values of each component that count as allowed."""
    parts = [np.flatnonzero(part.allowed[row]).tolist() for part in masks.parts]
    return [part or list(range(n)) for part, n in zip(parts, SIZES, strict=True)]


def _slow_policy(logits: list[float], counted: list[list[int]], how: str) -> dict[tuple[int, ...], float]:
    """Probability of every joint action."""
    each, start = [], 0
    for n, kept in zip(SIZES, counted, strict=True):
        weight = [math.exp(x) for x in logits[start : start + n]]
        start += n
        if how == "renormalise":
            weight = [w if v in kept else 0.0 for v, w in enumerate(weight)]
        policy = [w / sum(weight) for w in weight]
        # all values of a component are equally far from each other: the first allowed one runs
        if how == "project":
            policy = [
                sum(policy[u] for u in range(n) if (u if u in kept else kept[0]) == v) for v in range(n)
            ]
        each.append(policy)
    return {a: math.prod(p[v] for p, v in zip(each, a, strict=True)) for a in JOINT}


def _entropy(policy: dict[tuple[int, ...], float]) -> float:
    return -sum(p * math.log(p) for p in policy.values() if p > 0)


def _one_hot(action: tuple[int, ...]) -> list[float]:
    return [float(v == chosen) for n, chosen in zip(SIZES, action, strict=True) for v in range(n)]


def _slow_q(ensemble: Any, features: torch.Tensor) -> np.ndarray:
    """Q of every critic [N, B, joint]."""
    every = torch.tensor([_one_hot(a) for a in JOINT])
    rows = [
        ensemble(torch.cat([one.expand(len(JOINT), -1), every], dim=-1))[..., 0].detach() for one in features
    ]
    return torch.stack(rows, dim=1).double().numpy()


@torch.no_grad()
@pytest.mark.parametrize("backup", ["renormalise", "project", "none"])
def test_values_and_probabilities(backup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sac_factored, "TARGET_SAMPLES", 4_000)  # the one part that is sampled
    masks, features = _masks(0), _features(0)
    learner = _learner(masks.spec, backup=backup)
    logits = learner.actor(features)[0].double().tolist()
    q = _slow_q(learner.target["ensemble"], features).min(axis=0)
    policy = learner._next_policy(features, masks.encode())
    value = learner._soft_value(features, policy, None)
    for row in range(B):
        slow = _slow_policy(logits[row], _counted(masks, row), backup)
        drawn = {tuple(a) for a in policy.action[row].tolist()}
        assert drawn <= {a for a, p in slow.items() if p > 0}
        assert policy.uncertainty[row] == pytest.approx(_entropy(slow), abs=1e-5)
        values = np.array([slow[a] for a in JOINT]) @ q[row]
        spread = math.sqrt(np.array([slow[a] for a in JOINT]) @ (q[row] - values) ** 2 / 4_000)
        assert abs(value[row].item() - values - 0.3 * _entropy(slow)) < 5 * spread + 1e-5
        for action in JOINT[::5]:
            at = learner._probability(
                features[row : row + 1], torch.tensor([action]), masks.encode()[row : row + 1]
            )
            assert at.item() == pytest.approx(slow[action], abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("sign", ["add", "subtract"])
def test_the_target_of_given_next_actions(sign: Any) -> None:
    """With the sampled actions known, the target is that of a loop: r + gamma (mean of the least Q +- alpha H)."""
    masks = _masks(1)
    learner = _learner(masks.spec, backup_entropy=sign)
    data = _batch(masks)
    (policy,) = learner._next_policies([learner._minibatch(data, 0)])
    target = learner._target(learner._minibatch(data, 0), policy)
    after = torch.as_tensor(data.next_observation[0])
    q = _slow_q(learner.target["ensemble"], after).min(axis=0)
    for row in range(B):
        values = [q[row, JOINT.index(tuple(a))] for a in policy.action[row].tolist()]
        soft = np.mean(values) + {"add": 0.3, "subtract": -0.3}[sign] * float(policy.uncertainty[row])
        expected = data.reward[0, row] + data.discount[0, row] * soft
        assert float(target[row]) == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_a_span_counts_later_steps_as_far_as_the_policy_takes_them() -> None:
    masks = [_masks(seed) for seed in range(3)]
    learner = _learner(masks[0].spec)
    data = learner._minibatch(_spanned(masks), 0)
    learner.generator.manual_seed(3)
    (policy,) = learner._next_policies([data])
    before = learner.generator.get_state()
    target = learner._target(data, policy)
    learner.generator.set_state(before)  # the values inside the span are sampled in the same order
    span = data.span_steps
    seen = span.observation[:, 1]
    inside = learner._soft_value(seen, learner._next_policy(seen, masks[1].encode()), None)
    q = _slow_q(learner.target["ensemble"], seen).min(axis=0)
    logits = learner.actor(seen)[0].double().tolist()
    last = learner._soft_value(data.next_observation, policy, None)
    for row in range(B):
        later = float(span.reward[row, 1] + span.discount[row, 1] * last[row])
        if data.span_length[row] == 2:
            action = tuple(span.executed_action[row, 1].tolist())
            taken = _slow_policy(logits[row], _counted(masks[1], row), "project")[action]
            later = float(inside[row]) + taken * (later - q[row, JOINT.index(action)])
        else:
            later = float(last[row])
        expected = float(span.reward[row, 0] + span.discount[row, 0] * later)
        assert float(target[row]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("actor", ["projected", "masked", "raw"])
def test_the_actor_follows_the_gradient_of_the_expected_value(actor: Any) -> None:
    """The mean over many samples is the gradient of the sum over all joint actions, entropy included."""
    masks, features = _masks(2), _features(2)
    learner = _learner(masks.spec, actor=actor, backup="project" if actor != "raw" else "none")
    bias = learner.actor.biases[-1]
    repeat = 200
    (sampled,) = torch.autograd.grad(
        sum(learner._actor_loss(features, masks.encode())[0] for _ in range(repeat)) / repeat, bias
    )
    q = torch.as_tensor(_slow_q(learner.critic["ensemble"], features).mean(axis=0))
    logits = learner.policy.logits(features)
    allowed = learner.policy.allowed(masks.encode())
    kept = logits if actor != "masked" else logits.masked_fill(~allowed, -torch.inf)
    each = kept.softmax(dim=-1)
    run = each if actor != "projected" else sac_factored.moved(each, sac_factored._corrected(allowed))
    joint = torch.stack(
        [torch.stack([run[:, i, v] for i, v in enumerate(a)]).prod(dim=0) for a in JOINT], dim=-1
    )
    uncertainty = -(each * each.clamp(min=1e-30).log()).sum(dim=(-2, -1))
    (exact,) = torch.autograd.grad(-((joint * q).sum(dim=-1) + 0.3 * uncertainty).mean(), bias)
    assert torch.allclose(sampled, exact, atol=0.15 * exact.abs().max().item())


def test_the_correction_is_that_of_the_guardian() -> None:
    space = gym.spaces.MultiDiscrete([13, 2, 40, 8], start=[2, 0, -3, 1])
    generator = np.random.default_rng(0)
    allowed = generator.random((40, 63)) < 0.3
    rule = gx.mask_rule(lambda row: allowed[row], name="listed")
    guardian = gx.Guardian(space, rule)
    policy = SacFactored(
        replace(CONFIG, backup="none"), SPACE, gym.spaces.MultiDiscrete(space.nvec),
        safe_set_spec=gx.ProductMask(allowed, space.nvec, space.start).spec,
    ).policy  # fmt: skip
    for row in range(40):
        proposed = np.array([generator.integers(n) for n in space.nvec])
        verdict = guardian.certify(row, proposed + space.start)
        corrected = sac_factored._corrected(policy.allowed(verdict.safe_set.encode()[None]))
        executed = sac_factored._at(corrected, torch.as_tensor(proposed)[None])[0].numpy() + space.start
        np.testing.assert_array_equal(verdict.action, executed)
        if verdict.status is not gx.Status.INEVITABLE:
            assert verdict.safe_set.contains(verdict.action)
        assert verdict.safe_set.only(verdict.action).contains(verdict.action)
        assert not verdict.safe_set.only(verdict.action).contains(verdict.action + np.eye(4, dtype=int)[2])


def test_proposals_keep_to_the_safe_set_where_they_are_drawn_from_it() -> None:
    masks = _masks(3, 400)
    learner = _learner(masks.spec, execution="resample")
    seen = np.random.default_rng(0).uniform(-1, 1, (400, OBS)).astype(np.float32)
    counts = [_counted(masks, row) for row in range(400)]
    for explore in (True, False):
        for action, counted in zip(learner.act(seen, masks.encode(), explore=explore), counts, strict=True):
            assert all(v in kept for v, kept in zip(action, counted, strict=True))
    free = learner.act(seen)  # without safe sets, proposals are raw
    assert not all(v in kept for v, kept in zip(free.T[0], (c[0] for c in counts), strict=True))
    assert free.min(axis=0).tolist() == [0, 0, 0]
    assert free.max(axis=0).tolist() == [n - 1 for n in SIZES]


@pytest.mark.parametrize("settings", [{}, {"ood_penalty": 1.0}, {"backup": "renormalise", "actor": "masked"}])
def test_it_resumes_bit_for_bit(settings: Any) -> None:
    masks = _masks(4)
    learner = _learner(masks.spec, **settings)
    data = _batch(masks)
    data.is_online[:, ::2] = False
    learner.update(data)
    saved = copy.deepcopy(learner.state())
    expected = [learner.update(data) for _ in range(2)]
    again = _learner(masks.spec, **settings)
    again.load_state(saved)
    assert [again.update(data) for _ in range(2)] == expected
    for one, other in zip(leaves(learner.state()), leaves(again.state()), strict=True):
        assert one == other if not torch.is_tensor(one) else torch.equal(one, other)


WANTED = np.array([[0, 1, 2, 3, 4, 5, 0], [5, 4, 3, 2, 1, 0, 5]])


def _shown(side: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The reward of a lock with seven dials: the share of them that show what its side asks for."""
    return np.mean(action == WANTED[side], axis=-1)


@pytest.mark.parametrize("guarded", [False, True])
def test_a_lock_with_280_000_joint_actions_is_opened(guarded: bool) -> None:
    """Under the rule the first dial may not show what is asked for, so the best is six of seven."""
    generator, both = np.random.default_rng(0), np.eye(2, dtype=np.float32)
    allowed = np.ones((2, 42), bool)
    allowed[[0, 1], WANTED[:, 0]] = not guarded
    masks = gx.ProductMask(allowed, [6] * 7)
    config = LearnerConfig(
        ensemble_size=2, target_subset=1, hidden_sizes=(64, 64), learning_rate=3e-3, tau=0.05, temperature=0.03,
        target_entropy="fixed", normalise=False, policy_tau=1.0,
    )  # fmt: skip
    space = gym.spaces.MultiDiscrete([6] * 7)
    learner = SacFactored(config, gym.spaces.Box(-1, 1, (2,), np.float32), space, safe_set_spec=masks.spec)
    for _ in range(80):
        side = generator.integers(2, size=512)
        action = generator.integers(6, size=(512, 7))
        action[::2] = learner.act(both[side[::2]])
        action = masks[side].nearest(action).point
        data = batch(
            both[side], action, _shown(side, action), both[side], np.zeros(512), masks.encode()[side],
            masks.encode()[side], updates=4,
        )  # fmt: skip
        learner.update(data)
    executed = masks.nearest(learner.act(both, explore=False)).point
    assert _shown(np.arange(2), executed) == pytest.approx([6 / 7, 6 / 7] if guarded else [1, 1])


def test_other_safe_sets_are_refused() -> None:
    with pytest.raises(GxError, match="have product masks as safe sets, not mask"):
        _learner(gx.Mask(np.ones(24, bool)).spec)


def _batch(masks: gx.ProductMask) -> Batch:
    generator = np.random.default_rng(7)
    observation, following = generator.normal(size=(2, B, OBS)).astype(np.float32)
    action = np.array([JOINT[i] for i in generator.integers(len(JOINT), size=B)])
    discount = np.where(np.arange(B) % 4 == 3, 0.0, 0.9)
    return batch(
        observation, action, generator.normal(size=B), following, discount, masks.encode(), masks.encode()
    )


def _spanned(masks: list[gx.ProductMask]) -> Batch:
    """Spans of one or two steps."""
    data, generator = _batch(masks[2]), np.random.default_rng(8)
    steps = SpanSteps(
        observation=generator.normal(size=(1, B, 2, OBS)).astype(np.float32),
        executed_action=np.array([[[JOINT[i] for i in row] for row in generator.integers(24, size=(B, 2))]]),
        reward=generator.normal(size=(1, B, 2)).astype(np.float32),
        discount=np.full((1, B, 2), 0.9, np.float32),
        safe_set=np.stack([masks[0].encode(), masks[1].encode()], axis=1)[None],
    )
    return replace(data, span_steps=steps, span_length=1 + np.arange(B)[None] % 2)
