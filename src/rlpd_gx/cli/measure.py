"""`rlpd-gx measure`: the measurements of docs/measurements.md for one run."""

from pathlib import Path
from typing import Annotated, Any

from rlpd_gx.cli.arguments import Argument, Option


def measure(
    run: Annotated[Path, Argument("Folder of a run.")],
    metric: Annotated[
        list[str] | None,
        Option("A measurement (docs/measurements.md), or module:function of your own. Default: all of ours."),
    ] = None,
    policy: Annotated[
        str | None,
        Option(
            "Measure another policy in the task of the run: random, held, a folder of a run or export, "
            "[algorithm:]file.zip of stable-baselines3, or module:callable."
        ),
    ] = None,
    episodes: Annotated[int, Option("Whole episodes to play.", min=1)] = 10,
    states: Annotated[int, Option("Critical states to look for.", min=1)] = 50,
    horizon: Annotated[
        int, Option("Steps from a critical state in which unsafe events are looked for.", min=1)
    ] = 500,
    replays: Annotated[
        int | None, Option("Critical states to replay to the first unsafe event. Default: all.", min=1)
    ] = None,
    json: Annotated[bool, Option("Print everything as JSON, with the curves.")] = False,
) -> None:
    """Measure the policy of a run: values, safety before and after the guard, exploration, support, scores.

    A measurement that cannot be made of this run is a sentence that says why.
    """
    from rlpd_gx.loop.measure import measure_run
    from rlpd_gx.metrics import find_measurement

    for name in metric or ():
        find_measurement(name)  # report a mistake before playing any episode
    found = measure_run(
        run,
        metric or (),
        policy=_policy(policy, run),
        episodes=episodes,
        states=states,
        horizon=horizon,
        replays=replays,
    )
    if json:
        from json import dumps

        print(dumps(_plain(found), indent=2))
        return
    for name, values in found.items():
        print(f"{name}:" if isinstance(values, dict) else f"{name}: not measured: {values}")
        for key, value in values.items() if isinstance(values, dict) else ():
            print(f"  {key:<36} {_shown(value)}")


def _policy(name: str | None, run: Path) -> Any:
    if name is None:
        return None
    from rlpd_gx.cli.policies import load_policy
    from rlpd_gx.loop.run_folder import RunFolder
    from rlpd_gx.loop.task import Task

    return load_policy(name, Task(RunFolder.open(run)[1]).make_env(), seed=0)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """JSON has neither infinities nor NaN."""
    import math

    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
