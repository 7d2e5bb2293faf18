"""`rlpd-gx atari verify`: what look-ahead and RAM rules are worth, game by game."""

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlpd_gx.cli.arguments import Argument, Option
from rlpd_gx.cli.atari import refuse_missing_folder, when_and_where
from rlpd_gx.errors import GxError

if TYPE_CHECKING:
    from rich.table import Table

    from rlpd_gx.experiments.look_ahead import Arm
    from rlpd_gx.rules import Rule

WIDTH = 170  # characters of the table
GUARDS = ("look-ahead", "ram", "both")
SEPARATOR = ", "  # between a game, its policy and its guard, where one command compares several


def verify(
    game: Annotated[str, Argument(help="A game, or all.")] = "all",
    policy: Annotated[
        list[str] | None,
        Option(
            help="random, held (random actions, kept for a while), a folder of a run or an export, "
            "[algorithm:]file.zip, or module:callable. Several are compared on the same seeds. Default: random.",
            many=True,
        ),
    ] = None,
    observation: Annotated[
        str | None,
        Option(
            help="What the policy sees: ram, objects, cells or pixels. Default: as it was trained, otherwise ram."
        ),
    ] = None,
    guard: Annotated[
        list[str] | None,
        Option(
            help="look-ahead, ram (the table's rules), or both: look-ahead where RAM rules see something coming. "
            "Several are compared on the same seeds. Default: look-ahead.",
            many=True,
        ),
    ] = None,
    critical: Annotated[
        int, Option(min=0, help="States on which RAM rules are compared with complete look-ahead sets.")
    ] = 0,
    depth: Annotated[int | None, Option(min=2, help="Steps to look ahead [default: the game's own].")] = None,
    events: Annotated[int, Option(min=1, help="Play until this many unsafe events without a guard.")] = 30,
    min_steps: Annotated[int, Option(min=250, help="But for at least this many steps.")] = 2_000,
    max_steps: Annotated[int, Option(min=250, help="And at most this many.")] = 10_000,
    guarded_steps: Annotated[
        int | None, Option(min=250, help="Steps under the guard [default: as many as without].")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Random seed, the same with and without a guard.")] = 0,
    out: Annotated[
        Path | None,
        Option(
            help="JSON file; finished games are kept, so that a stopped run goes on. The table goes "
            "into a .txt beside it."
        ),
    ] = None,
) -> None:
    """Play each game without a guard and under one, and compare unsafe events, score and cost."""
    from rich.console import Console

    from rlpd_gx.envs.atari import GAMES, find_game

    names = list(GAMES) if game == "all" else [find_game(game).name]
    policies, guards = policy or ["random"], guard or ["look-ahead"]
    for unknown in (one for one in guards if one not in GUARDS):
        raise GxError(f"--guard is {unknown!r}, but it must be one of: {', '.join(GUARDS)}")
    content = _read(out)
    console = Console()
    keys = []
    for name, one_policy in itertools.product(names, policies):
        without: list[Arm] = []  # the same for every guard, so it is played once
        for one_guard in guards:
            settings = {"policy": one_policy, "observation": observation or _observation(one_policy),
                        "guard": one_guard, "critical": critical, "events": events, "min_steps": min_steps,
                        "max_steps": max_steps, "guarded_steps": guarded_steps, "seed": seed}  # fmt: skip
            several = [one_policy] * (len(policies) > 1) + [one_guard] * (len(guards) > 1)
            keys.append(SEPARATOR.join([name, *several]))
            done = content["games"].get(keys[-1])
            content["games"][keys[-1]] = _game(name, depth, settings, done, without, console)
            content["games"] = dict(sorted(content["games"].items()))
            if out is not None:
                _write(out, content)
    shown = content["games"] if out is not None else {key: content["games"][key] for key in keys}
    Console(width=max(console.width, WIDTH)).print(table(shown))
    console.print(_conclusion(shown), soft_wrap=True, highlight=False)


def _observation(policy: str) -> str:
    """What a trained policy sees; RAM for all others."""
    from rlpd_gx.envs.making import ATARI

    if not os.path.isdir(policy):
        return "ram"
    from rlpd_gx.deploy.export import Export

    trained_on = Export.find(policy).about["env"]
    if (ours := ATARI.fullmatch(trained_on)) is None:
        raise GxError(
            f"--policy {policy} was trained on {trained_on}, which is no game of rlpd-gx atari list"
        )
    return ours["observation"]


def _trained(policy: str) -> dict[str, Any]:
    """How a policy was trained, so that results of an earlier one are not taken for its own."""
    if not os.path.isdir(policy):
        return {}
    from rlpd_gx.deploy.export import Export

    return {"trained": Export.find(policy).about["trained"]}


def _game(
    name: str,
    depth: int | None,
    settings: dict[str, Any],
    done: dict[str, Any] | None,
    without: "list[Arm]",
    console: Any,
) -> dict[str, Any]:
    """The result of one game; the one at hand if it was made by the same rule and settings.

    `without` holds the arm without a guard once it has been played.
    """
    from rich.progress import Progress

    from rlpd_gx.cli.policies import load_policy
    from rlpd_gx.envs.atari import make
    from rlpd_gx.envs.atari.lookahead import Lookahead, QuickLookahead
    from rlpd_gx.envs.atari.ram_rules import RamRules
    from rlpd_gx.experiments.look_ahead import agreement, compare, play_without
    from rlpd_gx.guardian import Guardian

    env = make(name, settings["observation"])
    rule = (QuickLookahead if settings["guard"] == "both" else Lookahead)(env, depth)
    chosen: Rule = RamRules(env) if settings["guard"] == "ram" else rule
    guardian = Guardian(env.action_space, chosen, embedding=env.embedding)
    known = {**settings, "depth": rule.search.depth, "fingerprint": guardian.fingerprint}
    known |= _trained(settings["policy"])
    defaults = {"guard": "look-ahead", "critical": 0}  # files of before have no such fields
    if done is not None and all((defaults | done).get(key) == value for key, value in known.items()):
        return done
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(name, total=None)

        def tell(arm: str, story: "Arm") -> None:
            if story.steps % 20 == 0:
                text = f"{name} {arm}: {story.steps:,} steps, {story.events} events"
                progress.update(task, description=text)

        def policy() -> Any:
            return load_policy(settings["policy"], env, settings["seed"])

        if not without:
            limits = {key: settings[key] for key in ("seed", "events", "min_steps", "max_steps")}
            without.append(play_without(env, policy(), **limits, tell=tell))
        found = compare(
            env,
            policy(),
            without[0],
            guardian,
            lambda: rule.simulated_steps,
            seed=settings["seed"],
            guarded_steps=settings["guarded_steps"],
            tell=tell,
        )
    if settings["critical"]:
        found["agreement"] = agreement(env, RamRules(env), rule, settings["critical"], settings["seed"])
    given = {
        key: value for key, value in (*settings.items(), ("depth", rule.search.depth)) if value is not None
    }
    options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in given.items())
    command = f"rlpd-gx atari verify {name} {options}"
    return {**known, "command": command, **when_and_where(), **found}


def table(games: dict[str, dict[str, Any]]) -> "Table":
    """All games for the terminal."""
    from rich.table import Table

    guards = sorted({found.get("guard", "look-ahead") for found in games.values()})
    made = Table(
        title=f"Unsafe events and score per 1,000 steps, without a guard and under {', '.join(guards)}"
    )
    headings = ("game", "steps", "events", "per 1,000", "times fewer (95%)", "score", "moved", "inevit.",
                "depth", "simulated", "ms", "ms mean")  # fmt: skip
    for heading in headings:
        made.add_column(heading, justify="left" if heading == "game" else "right", no_wrap=True)
    for name, found in games.items():
        bare, guarded = found["without"], found["guarded"]
        low, high = found["times_fewer_interval"]
        most = "∞" if high is None else f"{high:.3g}"
        made.add_row(
            name,
            f"{bare['steps']:,} → {guarded['steps']:,}",
            f"{bare['events']} → {guarded['events']}",
            f"{bare['events_per_1000']:.3g} → {guarded['events_per_1000']:.2g}",
            f"{found['times_fewer']:.3g} ({low:.2g} to {most})",
            f"{bare['score_per_1000']:,.0f} → {guarded['score_per_1000']:,.0f}",
            f"{guarded['correction_share']:.1%}",
            f"{guarded['inevitable_share']:.1%}",
            str(found["depth"]),
            f"{guarded['simulated_steps_per_step']:.1f}",
            f"{guarded['milliseconds_median']:.2g}",
            f"{guarded['milliseconds_mean']:.2g}",
        )
    return made


def _conclusion(games: dict[str, dict[str, Any]]) -> str:
    """A paragraph, or one for each policy and guard where a game has several."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for key, found in games.items():
        name, _, which = key.partition(SEPARATOR)
        groups.setdefault(which, {})[name] = found
    return "\n".join(
        f"{which}: {_paragraph(group)}" if which else _paragraph(group) for which, group in groups.items()
    )


def _paragraph(games: dict[str, dict[str, Any]]) -> str:
    import numpy as np

    fewer = np.array([found["times_fewer"] for found in games.values()])
    worse = [n for n, found in games.items() if (found["times_fewer_interval"][1] or np.inf) < 1]
    policies: dict[str, list[str]] = {}
    for name, found in games.items():
        policies.setdefault(found["policy"], []).append(name)
    most, *others = sorted(policies, key=lambda policy: -len(policies[policy]))
    policy = "; ".join([most, *(f"{other} in {', '.join(policies[other])}" for other in others)])
    return (
        f"{len(games)} games, policy {policy}: {np.exp(np.log(fewer).mean()):.3g} times fewer unsafe "
        f"events in geometric mean, counted as (events + 0.5) / steps; at least twice fewer in {(fewer >= 2).sum()}; "
        f"significantly more in {', '.join(worse) or 'none'}. All 95% intervals are in the JSON file. "
        "ms: processor time of a verdict, median and mean. simulated: emulator steps for each step of the game, since "
        "look-ahead uses a privileged simulator." + _agreements(games)
    )


def _agreements(games: dict[str, dict[str, Any]]) -> str:
    """How RAM rules compare with look-ahead, where that was asked for."""
    import numpy as np

    found = [game["agreement"] for game in games.values() if game.get("agreement", {}).get("critical_states")]
    if not found:
        return ""
    recall, precision = (
        float(np.median([f[key] if f[key] is not None else 0.0 for f in found]))
        for key in ("recall", "precision")
    )
    return (
        f" On critical states (look-ahead allows some actions and forbids some), RAM rules forbid {recall:.2f} of what "
        f"look-ahead forbids, and {precision:.2f} of what they forbid it forbids too: medians of {len(found)} games."
    )


def _read(out: Path | None) -> dict[str, Any]:
    import json

    if out is None or not out.exists():
        if out is not None:
            refuse_missing_folder(out)
        return {"games": {}}
    try:
        content = json.loads(out.read_text())
        games = content["games"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GxError(
            f"{out} is no result of `atari verify`; remove it, or write elsewhere with --out"
        ) from None
    for name, found in games:
        try:
            table({name: found}), _paragraph({name: found})
        except KeyError as field:
            raise GxError(
                f"{out}: {name} has no {field}: it was written by another version; remove that game from the file, "
                "or write elsewhere with --out"
            ) from None
    return content


def _write(out: Path, content: dict[str, Any]) -> None:
    """All games so far, in one piece, and the table beside it."""
    import json

    from rich.console import Console

    draft = out.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    draft.replace(out)
    with out.with_suffix(".txt").open("w") as file:
        console = Console(file=file, width=WIDTH)
        console.print(table(content["games"]))
        console.print(_conclusion(content["games"]), soft_wrap=True, highlight=False)
        console.print("One command for each game:")
        for found in content["games"].values():
            console.print(f"  {found['command']}  # {found['date']}, {found['machine']}", soft_wrap=True)
