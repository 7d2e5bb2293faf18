"""`rlpd-gx guard`: try rules on an environment, without training anything."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlpd_gx.cli.arguments import EnvKwargs, EnvWrappers, Option, read_env_kwargs
from rlpd_gx.errors import GxError

if TYPE_CHECKING:
    from rich.table import Table

    from rlpd_gx.guardian import GuardedEnv
    from rlpd_gx.types import Tally


MOST_STEPS = 100_000  # of an episode without --max-steps: some environments never end one


def guard(
    env: Annotated[
        str, Option(help="Gymnasium environment such as Walker2d-v5, or module:name of your own.")
    ],
    rules: Annotated[str, Option(help="module:name of a rule, or of a list of rules that must all hold.")],
    episodes: Annotated[int, Option(min=1, help="How many episodes to run.")] = 10,
    policy: Annotated[
        str,
        Option(
            help="random, a folder of a run or of an exported policy, [algorithm:]file.zip of stable-baselines3, "
            "or module:callable."
        ),
    ] = "random",
    monitor: Annotated[bool, Option(help="Block nothing, report what would be blocked.")] = False,
    compare: Annotated[bool, Option(help="Also run the same episodes without the guard.")] = False,
    state: Annotated[
        str | None,
        Option(
            help="module:function (env, observation, info) -> what the rules read. Default: `state` in the rules' "
            "module, else the observation."
        ),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Random seed of environment and policy.")] = 0,
    max_steps: Annotated[
        int | None, Option(min=1, help="Truncate each episode after this many steps.")
    ] = None,
    audit: Annotated[Path | None, Option(help="Append every correction to this file (JSON lines).")] = None,
    env_kwargs: EnvKwargs = "{}",
    env_wrappers: EnvWrappers = None,
) -> None:
    """Run a policy under rules and print the audit: a quick way to try your own rules.

    The rules' module may also hold `embedding` (places of discrete actions) and `unsafe_event` (see GuardedEnv).
    """
    from rich.console import Console

    from rlpd_gx.envs.making import make
    from rlpd_gx.guardian.named import guarded

    options = read_env_kwargs(env_kwargs, env_wrappers) | (
        {} if max_steps is None else {"max_episode_steps": max_steps}
    )
    console = Console()
    runs = [("monitor" if monitor else "enforce", audit)] + (
        [("monitor", None)] if compare and not monitor else []
    )
    results = []
    for mode, file in runs:
        world = guarded(make(env, **options), rules, state=state or "", mode=mode, audit=file)
        returns = _run(world, policy, episodes, seed, max_steps or MOST_STEPS, f"{env}, {mode}", console)
        title = f"{env}: what would have been blocked" if mode == "monitor" else f"{env} under guard"
        console.print(world.audit.table(title))
        results.append((mode, returns, world.audit))
    if len(results) == 2:
        console.print(_comparison(results))
    if audit is not None:
        console.print(f"Every correction is in {audit}", soft_wrap=True)
    _refuse_useless(results[0][2].tally, rules)


def _run(
    world: "GuardedEnv", policy: str, episodes: int, seed: int, limit: int, title: str, console: Any
) -> list[float]:
    """The return of each episode."""
    from rich.progress import Progress

    from rlpd_gx.cli.policies import load_policy

    act = load_policy(policy, world, seed)
    returns = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title, total=episodes)
        for episode in range(episodes):
            observation, _ = world.reset(seed=seed + episode)
            total, over, steps = 0.0, False, 0
            while not over:
                if steps == limit:
                    raise GxError(f"episode {episode} has not ended after {steps:,} steps; give --max-steps")
                steps += 1
                observation, reward, terminated, truncated, _ = world.step(act(observation))
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
            progress.advance(task)
    world.close()
    return returns


def _refuse_useless(counts: "Tally", rules: str) -> None:
    """A script that tries rules must notice if these never gave a usable answer."""
    if counts.reasons and sum(counts.reasons.values()) == counts.proposals:
        raise GxError(f"--rules {rules} gave no usable answer in any step: {next(iter(counts.reasons))}")
    if counts.inevitable == counts.proposals:
        raise GxError(
            f"--rules {rules} allowed no action in any of {counts.proposals:,} steps; make them wider"
        )


def _comparison(results: list[tuple[str, list[float], Any]]) -> "Table":
    import numpy as np
    from rich.table import Table

    table = Table(title="Same policy, same seeds", title_justify="left")
    for name in ("", "mean return", "steps", "forbidden actions executed", "unsafe episodes"):
        table.add_column(name, justify="left" if not name else "right")
    for mode, returns, audit in results:
        counts = audit.tally
        executed, failed = counts.forbidden_executed, sum(counts.reasons.values())
        said = f"{executed:,} ({executed / max(counts.proposals, 1):.1%})"
        if failed:
            said = "unknown" if failed == counts.proposals else f"{said}, {failed:,} unknown"
        watched = f"{counts.episodes_with_unsafe_event:,}" if counts.episodes_watched else "not watched"
        name = "with the guard" if mode == "enforce" else "without"
        table.add_row(name, f"{np.mean(returns):.1f}", f"{counts.proposals:,}", said, watched)
    return table
