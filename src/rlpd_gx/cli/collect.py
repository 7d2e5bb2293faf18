"""`rlpd-gx collect`: a dataset from any environment with any policy."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from rlpd_gx.cli.arguments import EnvKwargs, EnvWrappers, Option, read_env_kwargs
from rlpd_gx.cli.policies import load_policy, storable
from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.loading import GIVEN

_LEARNERS = ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")
_ATARI_OPTIONS = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}


def collect(
    env: Annotated[
        str,
        Option(help="Gymnasium environment such as Hopper-v5 or ALE/Pong-v5, or module:name of your own."),
    ],
    out: Annotated[Path, Option(help="New folder (minari), or file such as pong.json.gz (action-log).")],
    policy: Annotated[
        str,
        Option(
            help="random, held (random actions, kept for a while), planner (Atari: a search for reward in a second "
            "emulator, mixed with noise and guarded random play), a folder of a run or of an exported policy, "
            "module:callable, [algorithm:]file.zip of stable-baselines3 (holds pickled code: only from people you "
            "trust), or learn:sac: what such a learner sees while it learns (needs --steps)."
        ),
    ] = "random",
    episodes: Annotated[int | None, Option(min=1, help="Stop after this many episodes.")] = None,
    steps: Annotated[int | None, Option(min=1, help="Stop after this many steps, inside an episode.")] = None,
    epsilon: Annotated[
        list[float] | None,
        Option(min=0, max=1, help="Probability of a random action; several values alternate by episode."),
    ] = None,
    rules: Annotated[
        str | None, Option(help="Guard the environment: module:name of a rule or a list of rules.")
    ] = None,
    format: Annotated[Literal["minari", "action-log"], Option(help="What to write.")] = "minari",
    env_kwargs: EnvKwargs = "{}",
    env_wrappers: EnvWrappers = None,
    seed: Annotated[int, Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Record episodes of a policy, guarded or not."""
    import numpy as np

    from rlpd_gx.replay.offline import record
    from rlpd_gx.replay.offline.formats.minari import FINGERPRINT, SPEC

    if episodes is None and steps is None:
        raise GxError("give the amount to collect: --episodes or --steps")
    world = _make(env, read_env_kwargs(env_kwargs, env_wrappers))
    facts: dict[str, Any] = {"policy": policy, "epsilon": epsilon or [0.0], "seed": seed}
    unsafe_event = safe_set = None
    if rules is not None:
        from rlpd_gx.guardian.named import guarded

        world = guarded(world, rules)
        unsafe_event = world.unsafe_event
        facts |= {"rules": rules, "guarded_by": world.guardian.fingerprint}
        safe_set = world.safe_set
    act = None if policy.startswith("learn:") else load_policy(policy, world, seed)
    if rules is None and (trained_under := getattr(act, "trained_under", "")):
        _note_unguarded(policy, trained_under)
    sink = (record.MinariSink if format == "minari" else record.ActionLogSink)(out, world, facts)
    recorder = record.Recorder(world, sink, seed, unsafe_event, safe_set)
    try:
        if act is None:
            _learn(policy.removeprefix("learn:"), recorder, steps, seed)
        else:
            epsilons = tuple(epsilon or (0.0,))
            generator = np.random.default_rng(seed)
            proposed = storable(act, policy, world.action_space)
            record.roll_out(recorder, proposed, generator, epsilons=epsilons, episodes=episodes, steps=steps)
        if not recorder.steps:
            raise GxError(
                "not a single action was executed, so nothing was written: the Guardian lets nothing be executed "
                f"({recorder.stop_reason}); check that the rules can read the state"
            )
        stored = recorder.safe_set_spec is not None
        found = {FINGERPRINT: world.safe_sets_fingerprint(), SPEC: recorder.safe_set_spec} if stored else {}
        if (simulated := getattr(act, "simulated_steps", None)) is not None:
            found["simulated_steps"] = simulated
        sink.close(found)
    except BaseException:
        sink.discard()
        raise
    finally:
        world.close()
    if rules is not None:
        note_all_forbidden(world.audit.tally, recorder.steps)
    print(f"{recorder.steps} steps in {recorder.episodes} episodes written to {out}")


def _note_unguarded(policy: str, trained_under: str) -> None:
    """A folder is a policy and its guard elsewhere; here the proposals alone are executed."""
    named = "module:name" if trained_under.startswith(GIVEN) else trained_under
    print(
        f"note: the rules that {policy} was trained under are not used here, so its proposals are executed as they "
        f"are; --rules {named} guards them",
        file=sys.stderr,
    )


def note_all_forbidden(tally: Any, steps: int) -> None:
    """Warn where the rules never let the policy act: such a dataset shows the guard alone."""
    if tally.inevitable >= steps:
        print(
            f"note: the rules allowed no action in any of the {steps} steps, so each executed action breaks one "
            "(inevitable); check the rules before you use this data",
            file=sys.stderr,
        )
    if tally.fallback >= steps:
        print(
            f"note: the fallback was executed in each of the {steps} steps ({next(iter(tally.reasons), 'no reason')}); "
            "check the rules before you use this data",
            file=sys.stderr,
        )


def _make(env_id: str, options: dict[str, Any]) -> Any:
    from rlpd_gx.envs.making import make

    if env_id.startswith("ALE/"):
        options = {**_ATARI_OPTIONS, **options}
    return make(env_id, **options)


def _learn(algorithm: str, recorder: Any, steps: int | None, seed: int) -> None:
    if steps is None:
        raise GxError("a learner needs --steps, its training length")
    if algorithm.upper() not in _LEARNERS:
        raise GxError(f"--policy learn:{algorithm} is not known; there are {', '.join(_LEARNERS)}")
    try:
        import stable_baselines3
    except ImportError:
        raise missing_extra("stable-baselines3", "sb3") from None
    kind = "MlpPolicy" if len(recorder.observation_space.shape or ()) == 1 else "CnnPolicy"
    model = getattr(stable_baselines3, algorithm.upper())(kind, recorder, seed=seed, device="cpu")
    model.learn(steps)
    recorder.finish()
