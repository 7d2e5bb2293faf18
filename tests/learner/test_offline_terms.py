"""The conservative penalty and behaviour cloning: against slow references, and at optima known in closed form."""

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from batches import batch

from rlpd_gx.learner import LearnerConfig, SacContinuous, SacDiscrete, SoftDiscrete
from rlpd_gx.learner.sac_continuous import OOD_ACTIONS
from rlpd_gx.safe_sets import Mask
from rlpd_gx.types import Batch

N, B, OBS, WEIGHT = 4, 16, 3, 0.4
SPACE = gym.spaces.Box(-1, 1, (OBS,), np.float32)
ACTIONS = gym.spaces.Box(-2, 4, (1,), np.float32)
CONFIG = LearnerConfig(
    ensemble_size=2,
    target_subset=1,
    hidden_sizes=(32,),
    learning_rate=3e-3,
    backup="none",
    actor="raw",
    clone_weight=(0.0,),
    normalise=False,
)


def _learner(continuous: bool, **settings: Any) -> Any:
    config = replace(CONFIG, **settings)
    if continuous:
        return SacContinuous(config, SPACE, ACTIONS, seed=0)
    kind = SoftDiscrete if config.actor == "auto" else SacDiscrete
    return kind(config, SPACE, gym.spaces.Discrete(N), seed=0)


def _random(continuous: bool) -> Batch:
    """Episodes of one step: the target of a value is its reward."""
    generator = np.random.default_rng(0)
    observation = generator.uniform(-1, 1, (B, OBS)).astype(np.float32)
    action = (
        generator.uniform(-2, 4, (B, 1)).astype(np.float32) if continuous else generator.integers(N, size=B)
    )
    return batch(observation, action, generator.random(B), observation, np.zeros(B))


# --- the conservative penalty ----------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.0, WEIGHT])
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
def test_the_critic_loss_is_that_of_a_slow_reference(continuous: bool, weight: float) -> None:
    learner, data = _learner(continuous, ood_penalty=weight), _random(continuous)
    minibatch = learner._minibatch(data, 0)
    policy = learner._next_policies([minibatch])[0]
    state = learner.generator.get_state()
    learner._subset()  # the target draws its critics first
    others = torch.rand(OOD_ACTIONS, B, 1, generator=learner.generator) * 2 - 1
    learner.generator.set_state(state)

    def q(critic: int, row: int, action: Any) -> float:
        seen = torch.as_tensor(data.observation[0, row])
        if not continuous:
            return float(learner.critic["ensemble"](seen[None])[critic, 0, action])
        return float(learner.critic["ensemble"](torch.cat([seen, action])[None])[critic, 0, 0])

    total = 0.0
    with torch.no_grad():
        for critic in range(2):
            for row in range(B):
                if continuous:
                    taken = torch.as_tensor((data.executed_action[0, row] - 1) / 3)
                    unseen: Any = others[:, row]
                else:
                    taken = int(data.executed_action[0, row])
                    unseen = [a for a in range(N) if a != taken]
                value = q(critic, row, taken)
                rest = math.log(sum(math.exp(q(critic, row, a)) for a in unseen))
                total += ((value - float(data.reward[0, row])) ** 2 + weight * (rest - value)) / B
    loss = float(learner._update_critics(minibatch, policy, 0)["critic_loss"])
    assert loss == pytest.approx(total / 2, abs=1e-5)  # the metric is the mean over critics


@pytest.mark.parametrize(("actor", "slope"), [("raw", 2.0), ("auto", 1.0)])
def test_at_the_optimum_seen_actions_gain_and_unseen_ones_fall(actor: str, slope: float) -> None:
    """Minimising (q - r)^2 - w q gives q = r + w / 2, and Huber's loss q = r + w; nothing stops an unseen action."""
    observation, action = np.ones((B, OBS), np.float32), np.ones(B, np.int64)
    data = batch(observation, action, np.full(B, 0.5), observation, np.zeros(B))
    q = {}
    for weight in (0.0, WEIGHT):
        learner = _learner(False, ood_penalty=weight, actor=actor)
        for _ in range(150):
            learner.update(data)
        with torch.no_grad():
            q[weight] = learner.critic["ensemble"](torch.ones(1, OBS)).mean(dim=0)[0].numpy()
        assert q[weight][1] == pytest.approx(0.5 + weight / slope, abs=0.02)
    unseen = [0, 2, 3]
    assert (q[WEIGHT][unseen] < q[0.0][unseen] - 1).all()


def test_continuous_values_of_unseen_actions_fall() -> None:
    generator = np.random.default_rng(0)
    observation = np.zeros((64, OBS), np.float32)
    action = generator.uniform(2.4, 2.6, (64, 1)).astype(np.float32)  # 0.5 in [-1, 1]
    data = batch(observation, action, np.full(64, 0.5), observation, np.zeros(64))
    far = torch.tensor([[-1.5], [-0.5], [0.5]])
    q = {}
    for weight in (0.0, WEIGHT):
        learner = _learner(True, ood_penalty=weight)
        for _ in range(150):
            learner.update(data)
        with torch.no_grad():
            everywhere = torch.cat([torch.tensor([[2.5]]), far])
            q[weight] = learner._values(torch.zeros(4, OBS), everywhere)[0].mean(dim=0).numpy()
    assert q[0.0][0] == pytest.approx(0.5, abs=0.05)
    assert q[WEIGHT][0] > 0.4  # the data holds its own value up
    assert (q[WEIGHT][1:] < q[0.0][1:] - 0.5).all()


# --- behaviour cloning -----------------------------------------------------------------------------------


def _critics(learner: Any) -> dict[str, torch.Tensor]:
    both = {"critic": learner.critic, "target": learner.target}
    tensors = {f"{name}.{k}": v for name, module in both.items() for k, v in module.state_dict().items()}
    return {k: v.clone() for k, v in (tensors | {"temperature": learner.log_temperature.detach()}).items()}


def test_cloning_reaches_the_frequencies_of_the_data() -> None:
    """The mean log likelihood is at most minus the entropy of the data, and reaches it at its frequencies."""
    counts = np.array([[5, 3, 1, 1], [1, 1, 0, 8]])
    state = np.repeat([0, 0, 0, 0, 1, 1, 1, 1], counts.ravel())
    action = np.tile(np.arange(N), 2).repeat(counts.ravel())
    observation = np.eye(OBS, dtype=np.float32)[state]
    data = batch(observation, action, np.zeros(20), observation, np.full(20, 0.9))
    learner = _learner(False, actor="clone")
    critics = _critics(learner)
    losses = [learner.update(data)["actor_loss"] for _ in range(400)]
    share = counts / 10
    optimum = -np.sum(share * np.log(np.where(share > 0, share, 1.0))) / 2
    assert losses[0] > optimum + 0.2
    assert min(losses) >= optimum - 1e-6
    assert losses[-1] == pytest.approx(optimum, abs=0.02)
    with torch.no_grad():
        policy = learner.policy.logits(torch.eye(OBS)[:2]).softmax(dim=-1).numpy()
    assert policy == pytest.approx(share, abs=0.02)
    assert all(torch.equal(tensor, critics[name]) for name, tensor in _critics(learner).items())


def test_continuous_cloning_reaches_the_gaussian_of_the_data() -> None:
    """Before tanh the most likely Gaussian has mean and standard deviation of the data."""
    u = np.random.default_rng(0).normal(0.4, 0.3, 256)
    action = (1 + 3 * np.tanh(u)).astype(np.float32)[:, None]
    observation = np.zeros((256, OBS), np.float32)
    data = batch(observation, action, np.zeros(256), observation, np.full(256, 0.9))
    learner = _learner(True, actor="clone", learning_rate=1e-2)
    critics = _critics(learner)
    losses = [learner.update(data)["actor_loss"] for _ in range(300)]
    optimum = 0.5 * math.log(2 * math.pi * math.e * u.var()) + np.log(1 - np.tanh(u) ** 2).mean()
    assert losses[0] > optimum + 0.2
    assert min(losses) >= optimum - 1e-4
    assert losses[-1] == pytest.approx(optimum, abs=1e-2)
    with torch.no_grad():
        mean, log_std = learner.policy._gaussian(torch.zeros(1, OBS))
    assert float(mean) == pytest.approx(u.mean(), abs=0.02)
    assert float(log_std.exp()) == pytest.approx(u.std(), abs=0.02)
    assert all(torch.equal(tensor, critics[name]) for name, tensor in _critics(learner).items())


def test_actions_at_the_end_of_the_range_do_not_saturate_a_clone() -> None:
    """Seven of ten actions at the end and three in the middle: a clone that chases the end is nearly flat there."""
    action = np.repeat([4.0, 1.0], [70, 30]).astype(np.float32)[:, None]
    observation = np.zeros((100, OBS), np.float32)
    data = batch(observation, action, np.zeros(100), observation, np.full(100, 0.9))
    learner = _learner(True, actor="clone", learning_rate=1e-2)
    for _ in range(800):
        learner.update(data)
    with torch.no_grad():
        mean, log_std = learner.policy._gaussian(torch.zeros(1, OBS))
    end = math.atanh(0.99)
    assert float(mean) == pytest.approx(0.7 * end, abs=0.05)
    assert float(log_std.exp()) == pytest.approx(math.sqrt(0.7 * 0.3) * end, abs=0.05)
    at_end = learner.probability(observation[:1], action[:1], np.zeros((1, 0)))
    inside = learner.probability(observation[:1], np.float32([[3.97]]), np.zeros((1, 0)))
    assert at_end == pytest.approx(inside, rel=0.01)  # a clone's own density counts ends as it learned them


def test_without_cloning_the_critics_do_change() -> None:
    learner = _learner(False)
    before = _critics(learner)
    learner.update(_random(False))
    changed = [name for name, tensor in _critics(learner).items() if not torch.equal(tensor, before[name])]
    assert {name.partition(".")[0] for name in changed} == {"critic", "target", "temperature"}


@pytest.mark.parametrize("online", [True, False])
def test_a_soft_policy_clones_offline_rows_by_lowering_what_they_did_not_do(online: bool) -> None:
    """The value of what was done stays its reward, since nothing else is left to compare it with."""
    observation, action = np.ones((B, OBS), np.float32), np.ones(B, np.int64)
    data = batch(observation, action, np.full(B, 0.5), observation, np.zeros(B))
    data.is_online[...] = online
    plain, cloning = _learner(False, actor="auto"), _learner(False, actor="auto", clone_weight=(1.0,))
    for learner in (plain, cloning):
        for _ in range(150):
            learner.update(data, progress=0.0)
    with torch.no_grad():
        q = [x.critic["ensemble"](torch.ones(1, OBS)).mean(dim=0)[0].numpy() for x in (plain, cloning)]
    assert q[1][1] == pytest.approx(0.5, abs=0.05)
    if online:
        assert np.array_equal(q[0], q[1])
    else:
        assert (q[1][[0, 2, 3]] < q[0][[0, 2, 3]]).all()
        assert q[1][1] - q[1][[0, 2, 3]].max() > 0.1  # alpha: the clone prefers the data's action


@pytest.mark.parametrize("forbidden", [False, True])
def test_a_soft_policy_clones_within_the_safe_set(forbidden: bool) -> None:
    """Values of forbidden actions are not lowered; where the data's action is forbidden, there is nothing to clone."""
    mask = Mask(np.array([True, not forbidden, True, False]))
    codes = np.tile(mask.encode(), (B, 1))
    observation, action = np.ones((B, OBS), np.float32), np.ones(B, np.int64)
    data = batch(observation, action, np.full(B, 0.5), observation, np.zeros(B), codes, codes)
    data.is_online[...] = False
    config = replace(CONFIG, actor="auto", backup="renormalise")
    learner = SoftDiscrete(config, SPACE, gym.spaces.Discrete(N), safe_set_spec=mask.spec, seed=0)
    rows = learner._minibatch(data, 0)
    place, allowed = learner.policy.index(rows.executed_action), learner.guarded.allowed(rows.safe_set)
    bias = learner.critic["ensemble"].biases[-1]  # of the last layer: one number for each action

    def gradient(weight: float) -> np.ndarray:
        cloned = learner._cloned(rows, place, allowed, weight)
        loss, _, _ = learner._loss(rows.observation, place, rows.reward, allowed, cloned, None)
        return torch.autograd.grad(loss, bias)[0].sum(dim=(0, 1)).numpy()

    change = gradient(1.0) - gradient(0.0)
    if forbidden:
        assert not change.any()
    else:
        assert change[1] < 0 < min(change[0], change[2])
        assert change[3] == 0
