"""`rlpd-gx collect`: a dataset from any environment with any policy."""

import json
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlpd_gx.errors import GxError, missing_extra

# Fields that tell SB3's algorithms apart in a saved model; DDPG saves itself exactly as TD3 does.
_SB3_MARKS = {
    "clip_range": "PPO",
    "exploration_initial_eps": "DQN",
    "target_entropy": "SAC",
    "policy_delay": "TD3",
    "gae_lambda": "A2C",
}
_ATARI_KWARGS = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}


def collect(
    env_id: Annotated[
        str, typer.Argument(metavar="ENV", help="Gymnasium id, like Hopper-v5 or ALE/Pong-v5.")
    ],
    out: Annotated[Path, typer.Argument(help="New folder (minari) or file, like pong.json.gz (action-log).")],
    policy: Annotated[
        str,
        typer.Option(
            help="random; module:function (observation -> action); an SB3 model.zip (holds pickled code: "
            "only from people you trust); learn:SAC (what an SB3 learner sees while learning, needs --steps)."
        ),
    ] = "random",
    episodes: Annotated[int | None, typer.Option(min=1, help="Stop after this many episodes.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many steps, inside an episode.")
    ] = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="Chance of a random action; several take turns by episode."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the first reset and of all chance.")] = 0,
    format: Annotated[Literal["minari", "action-log"], typer.Option(help="What to write.")] = "minari",
    env_kwargs: Annotated[
        str, typer.Option(help='JSON for the environment, like \'{"obs_type": "ram"}\'.')
    ] = "{}",
    rules: Annotated[
        str | None, typer.Option(help="Guard the environment with rules, as module:name.")
    ] = None,
) -> None:
    """Record episodes of a policy, guarded or not."""
    import numpy as np

    from rlpd_gx.replay.offline import record

    if episodes is None and steps is None:
        raise GxError("say how much to collect: --episodes or --steps")
    env = make_env(env_id, _json(env_kwargs))
    if rules is not None:
        env = _guarded(env, rules)
    facts = {"policy": policy, "epsilon": epsilon or [0.0], "seed": seed, "made_by": "rlpd-gx collect"}
    generator = np.random.default_rng(seed)
    act = None if policy.startswith("learn:") else _policy(policy, env, seed)
    sink = (record.MinariSink if format == "minari" else record.ActionLogSink)(out, env, facts)
    recorder = record.Recorder(env, sink, seed)
    try:
        if act is None:
            _learn(policy.removeprefix("learn:"), recorder, steps, seed)
        else:
            record.roll_out(
                recorder, act, generator, epsilons=tuple(epsilon or (0.0,)), episodes=episodes, steps=steps
            )
        sink.close()
    except BaseException:
        sink.discard()
        raise
    finally:
        env.close()
    typer.echo(f"{recorder.steps} steps in {recorder.episodes} episodes written to {out}")


def make_env(env_id: str, kwargs: dict[str, Any]) -> Any:
    """The environment; packages that bring environments along are tried where the id is not known yet."""
    import gymnasium

    for package in ("ale_py", "highway_env", "gymnasium_robotics"):
        if env_id in gymnasium.registry or ":" in env_id:
            break
        try:
            gymnasium.register_envs(import_module(package))
        except ImportError:
            continue
    if env_id.startswith("ALE/"):
        kwargs = {**_ATARI_KWARGS, **kwargs}
        ale_py = _module("ale_py", "ale-py", "atari")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    try:
        return gymnasium.make(env_id, **kwargs)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise GxError(f"the environment {env_id} cannot be made: {error}") from None


def _guarded(env: Any, rules: str) -> Any:
    loaded = load_object(rules)
    try:
        from rlpd_gx import GuardedEnv
    except ImportError:
        raise GxError("this version has no Guardian yet, so --rules cannot be used; leave it out") from None
    return GuardedEnv(env, loaded)


def load_object(name: str) -> Any:
    """What `module:name` names."""
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            raise ImportError("there is no colon in it")
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise GxError(f"{name!r} cannot be loaded ({error}); write it as module:name") from None


def _policy(name: str, env: Any, seed: int) -> Callable[[Any], Any]:
    if name == "random":
        return lambda observation: env.action_space.sample()
    path = Path(name)
    if path.is_dir():
        raise GxError(
            f"{name} is a folder: saved runs cannot act yet; give an SB3 model.zip, module:function or random"
        )
    if path.suffix == ".zip":
        return _sb3_policy(path, seed)
    if ":" not in name:
        raise GxError(
            f"--policy {name!r} is not known; give random, module:function, an SB3 model.zip or learn:SAC"
        )
    act: Callable[[Any], Any] = load_object(name)
    return act


def _sb3_policy(path: Path, seed: int) -> Callable[[Any], Any]:
    sb3 = _module("stable_baselines3", "stable-baselines3", "sb3")
    try:
        with zipfile.ZipFile(path) as archive:
            fields = json.loads(archive.read("data"))
        algorithm = next(name for mark, name in _SB3_MARKS.items() if mark in fields)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, StopIteration) as error:
        raise GxError(
            f"{path}: not a model saved by SB3 ({type(error).__name__}); save it with model.save"
        ) from None
    model = getattr(sb3, algorithm).load(path, device="cpu")
    model.set_random_seed(seed)
    return lambda observation: model.predict(observation, deterministic=False)[0]


def _learn(algorithm: str, recorder: Any, steps: int | None, seed: int) -> None:
    if steps is None:
        raise GxError("a learner needs --steps, its training length")
    if algorithm not in set(_SB3_MARKS.values()):
        raise GxError(
            f"--policy learn:{algorithm} is not known; SB3 has {', '.join(sorted(_SB3_MARKS.values()))}"
        )
    sb3 = _module("stable_baselines3", "stable-baselines3", "sb3")
    kind = "MlpPolicy" if len(recorder.observation_space.shape or ()) == 1 else "CnnPolicy"
    model = getattr(sb3, algorithm)(kind, recorder, seed=seed, device="cpu")
    model.learn(steps)
    recorder.finish()


def _module(name: str, package: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise missing_extra(package, extra) from None


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise GxError(f"--env-kwargs {text!r} is not a JSON object ({error})") from None
    return value
