"""One contender of `bench.learner`, in a process of its own: python -m bench.updates SIZE CONTENDER

It prints "ready", then the CPU seconds of one update for each line that it reads. Processes keep libraries with threads
and memory pools of their own apart, and let an older commit of this project take part. Everything is imported in its
own contender: the older commit has other modules.

All do one update of critics, policy, temperature and target from one minibatch that is already in memory. With small
networks actions are discrete and ours has no actor network; SB3 has no SAC for discrete actions, so there its
continuous one runs with as many critics of the same size. Peers get tensors; ours converts numpy arrays.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TAU, GAMMA, LEARNING_RATE = 0.005, 0.99, 3e-4


class Size(NamedTuple):
    """Networks and minibatch of a comparison."""

    inputs: int
    actions: int
    hidden: int
    critics: int
    batch: int
    discrete: bool


SIZES = {
    "small": Size(40, 6, 128, 3, 128, discrete=True),  # Atari from objects
    "large": Size(17, 6, 256, 10, 256, discrete=False),  # RLPD
}
Update = Callable[[], object]


def rows(size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Observations, next observations [B, in], actions [B] or [B, k], rewards [B]."""
    generator = np.random.default_rng(0)
    seen = generator.normal(size=(2, size.batch, size.inputs)).astype(np.float32)
    if size.discrete:
        action = generator.integers(size.actions, size=size.batch)
    else:
        action = generator.uniform(-1, 1, (size.batch, size.actions)).astype(np.float32)
    return seen[0], seen[1], action, generator.normal(size=size.batch).astype(np.float32)


def batch_of(size: Size, updates: int = 1):
    """The rows as a block [updates, B] of this project."""
    from rlpd_gx.types import Batch

    def block(values):
        return np.broadcast_to(values, (updates, *values.shape)).copy()

    here, following, action, reward = map(block, rows(size))
    shape = (updates, size.batch)
    none, flags, one = np.zeros((*shape, 0), np.uint8), np.zeros(shape, bool), np.ones(shape, np.float32)
    return Batch(
        here, following, action, action, reward, GAMMA * one, flags, flags, none, none, one, flags, ~flags,
        np.zeros(shape, np.int64), np.ones(shape, np.int64),
    )  # fmt: skip


def learner_of(size: Size, *, actor: str = "auto", compiled: bool = False):
    """A learner of this project without rules; `actor` other than auto has a network also for discrete actions."""
    import gymnasium as gym

    from rlpd_gx import learner
    from rlpd_gx.config import LearnerConfig

    seen = gym.spaces.Box(-10, 10, (size.inputs,), np.float32)
    config = LearnerConfig(
        ensemble_size=size.critics,
        target_subset=min(2, size.critics),
        hidden_sizes=(size.hidden, size.hidden),
        backup="none",
        actor=actor if size.discrete else "raw",
        compile=compiled,
    )
    if not size.discrete:
        return learner.SacContinuous(config, seen, gym.spaces.Box(-1, 1, (size.actions,), np.float32))
    kind = learner.SoftDiscrete if actor == "auto" else learner.SacDiscrete
    return kind(config, seen, gym.spaces.Discrete(size.actions))


def ours(size: Size) -> Update:
    learner, batch = learner_of(size), batch_of(size)
    return lambda: learner.update(batch)


def ours_compiled(size: Size) -> Update:
    learner, batch = learner_of(size, compiled=True), batch_of(size)
    return lambda: learner.update(batch)


def ours_with_actor(size: Size) -> Update:
    """Also what an older commit is measured with."""
    learner, batch = learner_of(size, actor="raw"), batch_of(size)
    return lambda: learner.update(batch)


def mlp(size: Size, inputs: int, outputs: int):
    """A network as ours: LayerNorm before each activation."""
    from torch import nn

    layers: list[nn.Module] = []
    for width in (size.hidden, size.hidden):
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def torchrl(size: Size) -> Update:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torch import nn
    from torchrl.data import Bounded, OneHot
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.modules.distributions import OneHotCategorical
    from torchrl.objectives import SoftUpdate
    from torchrl.objectives.sac import DiscreteSACLoss, SACLoss

    here, following, action, reward = map(torch.as_tensor, rows(size))
    if size.discrete:
        spec = OneHot(size.actions)
        logits = TensorDictModule(mlp(size, size.inputs, size.actions), ["observation"], ["logits"])
        actor = ProbabilisticActor(
            logits, in_keys=["logits"], out_keys=["action"], spec=spec, distribution_class=OneHotCategorical
        )
        critic = TensorDictModule(mlp(size, size.inputs, size.actions), ["observation"], ["action_value"])
        loss = DiscreteSACLoss(
            actor, critic, action_space=spec, num_actions=size.actions, num_qvalue_nets=size.critics
        )
        action = torch.nn.functional.one_hot(action, size.actions)
    else:
        network = nn.Sequential(mlp(size, size.inputs, 2 * size.actions), NormalParamExtractor())
        actor = ProbabilisticActor(
            TensorDictSequential(TensorDictModule(network, ["observation"], ["loc", "scale"])),
            in_keys=["loc", "scale"],
            out_keys=["action"],
            spec=Bounded(-1, 1, (size.actions,)),
            distribution_class=TanhNormal,
        )

        class Joined(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = mlp(size, size.inputs + size.actions, 1)

            def forward(self, observation, action):
                return self.network(torch.cat([observation, action], dim=-1))

        critic = ValueOperator(Joined(), in_keys=["observation", "action"])
        loss = SACLoss(actor, critic, num_qvalue_nets=size.critics)
    loss.make_value_estimator(gamma=GAMMA)
    follow = SoftUpdate(loss, tau=TAU)
    optimiser = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE, fused=True)
    no = torch.zeros(size.batch, 1, dtype=torch.bool)
    after = {"observation": following, "reward": reward[:, None], "done": no, "terminated": no}
    data = TensorDict({"observation": here, "action": action, "next": after}, [size.batch])

    def update():
        losses = loss(data.copy())
        total = sum(losses[name] for name in ("loss_actor", "loss_qvalue", "loss_alpha"))
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        follow.step()
        return total.item()

    return update


def sb3(size: Size) -> Update:
    import gymnasium as gym
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    class Spaces(gym.Env):
        observation_space = gym.spaces.Box(-10, 10, (size.inputs,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (size.actions,), np.float32)

    widths = [size.hidden, size.hidden]
    kwargs = {"net_arch": widths, "n_critics": size.critics}
    model = SAC("MlpPolicy", Spaces(), policy_kwargs=kwargs, buffer_size=1, device="cpu")
    here, following, action, reward = map(torch.as_tensor, rows(size._replace(discrete=False)))
    sample = ReplayBufferSamples(here, action, following, torch.zeros(size.batch, 1), reward[:, None])
    model.replay_buffer.sample = lambda *_, **__: sample
    model.set_logger(Logger(None, []))
    return lambda: model.train(1, size.batch)


def jax(size: Size) -> Update:
    """An ensemble with stacked parameters, as RLPD's own, the whole update under one jit."""
    import jax
    from jax import numpy as jnp

    def network(key, members, inputs, outputs):
        layers = []
        for width in (size.hidden, size.hidden, outputs):
            key, now = jax.random.split(key)
            limit = (6 / (inputs + width)) ** 0.5
            weight = jax.random.uniform(now, (members, inputs, width), minval=-limit, maxval=limit)
            layers.append((weight, jnp.zeros((members, 1, width))))
            inputs = width
        return layers

    def forward(layers, x):
        """[B, in] -> [members, B, out]."""
        x = jnp.broadcast_to(x, (len(layers[0][0]), *x.shape))
        for number, (weight, bias) in enumerate(layers):
            if number:
                x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
                x = jax.nn.relu(x)
            x = jnp.einsum("mbi,mio->mbo", x, weight) + bias
        return x

    def drawn(actor, x, key):
        """Actions [B, k] of a squashed Gaussian, and their log-density [B]."""
        mean, log_std = jnp.split(forward(actor, x)[0], 2, axis=-1)
        log_std = jnp.clip(log_std, -20, 2)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        squash = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        density = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi) - squash
        return jnp.tanh(raw), density.sum(-1)

    def adam(value, gradient, mean, square, step):
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, gradient)
        scale = LEARNING_RATE * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        moved = jax.tree.map(lambda v, m, s: v - scale * m / (jnp.sqrt(s) + 1e-8), value, mean, square)
        return moved, mean, square

    def losses(trained, target, key, here, following, action, reward):
        critic, actor, log_alpha = trained
        still, alpha = jax.lax.stop_gradient, jnp.exp(jax.lax.stop_gradient(log_alpha))
        if size.discrete:  # the policy is the softmax of the mean value
            ahead = forward(target, following)
            log_p = jax.nn.log_softmax(ahead.mean(0) / alpha)
            value = (jnp.exp(log_p) * (ahead.min(0) - alpha * log_p)).sum(-1)
            every = forward(critic, here)
            q = jnp.take_along_axis(every, action[None, :, None], axis=-1)[..., 0]
            log_now = jax.nn.log_softmax(still(every).mean(0) / alpha)
            entropy, policy_loss = -(jnp.exp(log_now) * log_now).sum(-1), 0.0
            wanted = 0.3 * jnp.log(size.actions)
        else:
            after, now = jax.random.split(key)
            chosen, density = drawn(still(actor), following, after)
            ahead = forward(target, jnp.concatenate([following, chosen], -1))[..., 0].min(0)
            value = ahead - alpha * density
            q = forward(critic, jnp.concatenate([here, action], -1))[..., 0]
            chosen, density = drawn(actor, here, now)
            worth = forward(still(critic), jnp.concatenate([here, chosen], -1))[..., 0].mean(0)
            entropy, policy_loss = -still(density), (alpha * density - worth).mean()
            wanted = -size.actions
        error = q - still(reward + GAMMA * value)
        huber = jnp.where(jnp.abs(error) < 1, 0.5 * error**2, jnp.abs(error) - 0.5)
        temperature_loss = log_alpha * still((entropy - wanted).mean())
        return huber.mean(1).sum() + policy_loss + temperature_loss

    @jax.jit
    def step(trained, target, mean, square, count, key, *data):
        key, now = jax.random.split(key)
        loss, gradient = jax.value_and_grad(losses)(trained, target, now, *data)
        trained, mean, square = adam(trained, gradient, mean, square, count)
        target = jax.tree.map(lambda t, c: t + TAU * (c - t), target, trained[0])
        return trained, target, mean, square, count + 1, key, loss

    key = jax.random.key(0)
    if size.discrete:
        critic, actor = network(key, size.critics, size.inputs, size.actions), []
    else:
        critic = network(key, size.critics, size.inputs + size.actions, 1)
        actor = network(key, 1, size.inputs, 2 * size.actions)
    trained = (critic, actor, jnp.zeros(()))
    zeros = jax.tree.map(jnp.zeros_like, trained)
    state = [trained, critic, zeros, zeros, jnp.ones(()), key]
    data = [jnp.asarray(values) for values in rows(size)]

    def update():
        *state[:], loss = step(*state, *data)
        return float(loss)

    return update


CONTENDERS: dict[str, Callable[[Size], Update]] = {
    "ours": ours,
    "ours, compiled": ours_compiled,
    "ours, with an actor": ours_with_actor,
    "before": ours_with_actor,
    "torchrl": torchrl,
    "sb3": sb3,
    "jax": jax,
}


def main() -> None:
    size, make = SIZES[sys.argv[1]], CONTENDERS[sys.argv[2]]
    if "torch" in sys.modules or make is not jax:
        import torch

        torch.set_num_threads(1)
    update = make(size)
    for _ in range(5):  # compiles, and warms up
        update()
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        start = time.process_time()
        for _ in range(count):
            update()
        print((time.process_time() - start) / count, flush=True)


if __name__ == "__main__":
    main()
