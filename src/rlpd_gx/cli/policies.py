"""Policies as a person names them."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.loading import load, raised

if TYPE_CHECKING:
    import gymnasium as gym

HOLD_STEPS = 8  # that `held` keeps an action for, on average


def load_policy(spec: str, env: "gym.Env", seed: int) -> Callable[[Any], Any]:
    """observation -> action, from `random`, `held`, a folder (run or export), an SB3 zip or `module:callable`.

    These are proposals: the guard of a folder's own policy is left out, that of the command decides. Where evaluations
    sample from a trained policy, as in Atari, this does too. Where it fails, the error is one sentence.
    """
    return NamedPolicy(spec, _named(spec, env, seed))


class NamedPolicy:
    """A policy that says its name where it fails; the rest, such as the steps a planner simulated, is its own."""

    def __init__(self, spec: str, policy: Callable[[Any], Any]) -> None:
        self._spec, self._policy = spec, policy

    def __call__(self, observation: Any) -> Any:
        try:
            return self._policy(observation)
        except GxError:
            raise
        except Exception as error:
            raise GxError(f"--policy {self._spec} {raised(error)}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


def _named(spec: str, env: "gym.Env", seed: int) -> Callable[[Any], Any]:
    if spec == "random":
        env.action_space.seed(seed)
        return lambda observation: env.action_space.sample()
    if spec == "held":
        return _held(env, seed)
    if spec == "planner":
        from rlpd_gx.envs.atari.planner import Planner

        return Planner(env, seed)
    if os.path.isdir(spec):
        return TrainedPolicy(spec, env, seed)
    if spec.endswith(".zip"):
        return _sb3_policy(spec)
    if ":" not in spec:
        raise GxError(
            f"--policy {spec}: there is no such folder; give random, a folder, a .zip or module:function"
        )
    from rlpd_gx.rules import Rule

    policy, _ = load(spec, "policy")
    if not callable(policy) or isinstance(policy, Rule):
        raise GxError(
            f"--policy {spec} is a {type(policy).__name__}; it must be a function observation -> action"
        )
    return policy


def storable(policy: Callable[[Any], Any], spec: str, space: "gym.Space") -> Callable[[Any], Any]:
    """The policy, which is refused where it returns what cannot be stored as an action."""
    import gymnasium as gym
    import numpy as np

    ids = gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary

    def act(observation: Any) -> Any:
        action, fits = policy(observation), True
        if isinstance(space, gym.spaces.Box):  # numbers out of range are allowed, as in any data
            given = np.asarray(action)
            fits = given.dtype.kind in "biuf" and given.shape == space.shape and np.isfinite(given).all()
        elif isinstance(space, ids):
            fits = space.contains(action)
        if not fits:
            raise GxError(f"--policy {spec} returned {action!r:.80}, but the environment takes {space}")
        return action

    return act


class TrainedPolicy:
    """The actor of a run or an exported policy, and the rules that guarded it in training (empty: none)."""

    def __init__(self, spec: str, env: "gym.Env", seed: int) -> None:
        from rlpd_gx.deploy.export import Export
        from rlpd_gx.envs.description import describe, learner_space

        self.export = export = Export.find(spec)
        spaces = {"observation_space": learner_space(env.observation_space), "action_space": env.action_space}
        for what, here in spaces.items():
            trained = getattr(export, what)
            if trained != here:
                raise GxError(
                    f"--policy {spec} was trained on {export.about['env']} with {what.replace('_', ' ')} {trained}, "
                    f"but here it is {here}"
                )
        self.network, self.sample = export.network(seed), describe(export.about["env"]).sample_in_evaluation
        self.trained_under = export.about["rules"] if export.about["guard"] != "none" else ""

    def __call__(self, observation: Any) -> Any:
        from rlpd_gx.deploy.export import propose

        return propose(self.export, self.network, observation, sample=self.sample)


def _held(env: "gym.Env", seed: int) -> Callable[[Any], Any]:
    """Random actions, each held for a while: gets further from where it starts than a new action in every step."""
    import numpy as np

    env.action_space.seed(seed)
    chance = np.random.default_rng(seed)
    action = env.action_space.sample()

    def act(observation: Any) -> Any:
        nonlocal action
        if chance.random() < 1 / HOLD_STEPS:
            action = env.action_space.sample()
        return action

    return act


def _sb3_policy(spec: str) -> Callable[[Any], Any]:
    try:
        import stable_baselines3 as sb3
    except ModuleNotFoundError:
        raise missing_extra("stable-baselines3", "sb3") from None
    algorithm, _, path = spec.rpartition(":")
    if not os.path.isfile(path):
        raise GxError(f"--policy {spec}: there is no file {path}")
    names = [algorithm.upper()] if algorithm else ["PPO", "SAC", "DQN", "TD3", "A2C", "DDPG"]
    for name in names:
        if not hasattr(sb3, name):
            raise GxError(f"--policy {spec}: stable-baselines3 has no algorithm {name}")
        try:
            model = getattr(sb3, name).load(path, device="cpu")
        except Exception:  # the zip does not say which algorithm made it, so try the next
            continue
        return lambda observation: model.predict(observation, deterministic=True)[0]
    raise GxError(f"--policy {spec}: no stable-baselines3 algorithm can read it; name one, as in sac:{path}")
