"""`rlpd-gx atari`: the 26 games, and finding out how a game shows that death is certain."""

from pathlib import Path
from typing import Annotated, Any

from rlpd_gx.cli.arguments import Argument, Option
from rlpd_gx.errors import GxError


def list_games() -> None:
    """Show each game: actions, unsafe event, dying flag and how well it does, lag, recommended depth."""
    from rich.console import Console
    from rich.table import Table

    from rlpd_gx.envs.atari import GAMES

    table = Table(title="Atari-100k: unsafe events, and how RAM shows them before they are counted")
    for heading in ("game", "actions", "unsafe event", "dying flag: any of"):
        table.add_column(heading)
    for heading in ("precision", "recall", "events", "lag", "depth"):
        table.add_column(heading, justify="right")
    for game in GAMES.values():
        evidence = game.evidence
        shares = [f"{share:.3f}" if game.dying else "-" for share in (evidence.precision, evidence.recall)]
        table.add_row(
            game.name,
            str(game.actions),
            game.event,
            "; ".join(map(str, game.dying)) or "-",
            *shares,
            str(evidence.events),
            f"{evidence.lag_steps:g}",
            str(game.depth),
        )
    Console().print(table)
    print(
        "precision: share of flagged steps that the event followed; recall: share of events that were flagged;\n"
        "lag: median steps from the event being certain to its being counted; depth: steps to look ahead"
    )


def find_flags(
    game: Annotated[str, Argument(help="A game, or all.")] = "all",
    deaths: Annotated[int, Option(min=4, help="Unsafe events to search on, and again to check on.")] = 100,
    steps: Annotated[int, Option(min=100, help="Most steps for the search, and for the check.")] = 25_000,
    lags: Annotated[int, Option(min=1, help="Events to go back from to the fatal moment.")] = 10,
    seed: Annotated[int, Option(min=0, help="Random seed.")] = 0,
    out: Annotated[
        Path | None, Option(help="JSON file; games that are in it already keep their place.")
    ] = None,
) -> None:
    """Find conditions on RAM that hold only once an unsafe event is certain, and check them on fresh play."""
    from rlpd_gx.envs.atari import GAMES, find_game
    from rlpd_gx.envs.atari.finding import find

    names = list(GAMES) if game == "all" else [find_game(game).name]
    if out is not None:
        refuse_missing_folder(out)
    for name in names:
        found = find(name, deaths, steps, lags, seed)
        print(_sentence(found))
        if out is not None:
            settings = {"deaths": deaths, "steps": steps, "lags": lags, "seed": seed}
            _write(out, name, found.as_json(), settings)


def show(
    game: Annotated[str, Argument(help="A game, or the file of a table.")],
    out: Annotated[Path, Option(help="PNG file.")] = Path("atari.png"),
    steps: Annotated[
        int | None,
        Option(min=0, help="After this many steps [default: when a rule first forbids something]."),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Random seed of the game and its random player.")] = 0,
) -> None:
    """Draw what the game's table sees: boxes, where deadly things go, and the actions its rules forbid."""
    import numpy as np

    from rlpd_gx.envs.atari import make
    from rlpd_gx.envs.atari.drawing import forbidden, picture, save

    refuse_missing_folder(out)
    env = make(game)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    played = 0
    while played < (2_000 if steps is None else steps) and (
        steps is not None or not forbidden(env) or played < 2
    ):
        *_, terminated, truncated, _ = env.step(int(rng.integers(len(env.actions))))
        played += 1
        if terminated or truncated:
            env.reset()
    save(picture(env), out)
    rules = "; ".join(f"{rule} forbids {', '.join(names)}" for rule, names in forbidden(env).items())
    print(f"{out}: {env.game.name} after {played} steps; {rules or 'nothing is forbidden'}")


def boxes(
    game: Annotated[str, Argument(help="A game, the file of a table, or all.")] = "all",
    steps: Annotated[int, Option(min=10, help="Steps of guarded random play.")] = 1_500,
    seed: Annotated[int, Option(min=0, help="Random seed of the game and its random player.")] = 0,
    out: Annotated[
        Path | None, Option(help="JSON file; games that are in it already keep their place.")
    ] = None,
) -> None:
    """Check that the boxes of a game's table show something on the screen, kind by kind."""
    from rlpd_gx.envs.atari import GAMES, find_game
    from rlpd_gx.envs.atari.agreement import boxes_agree

    for name in list(GAMES) if game == "all" else [game if game.endswith(".toml") else find_game(game).name]:
        found = boxes_agree(name, steps, seed=seed)
        for kind, row in found.items():
            share = "not seen" if row["share"] is None else f"{row['share']:.1%} of {row['boxes']} boxes"
            control = "" if row["elsewhere"] is None else f" (elsewhere {row['elsewhere']:.1%})"
            print(f"{name}: {kind}: {share}{control}")
        if out is not None:
            _write(out, name, {"objects": found}, {"steps": steps, "seed": seed}, "boxes")


def refuse_missing_folder(out: Path) -> None:
    """Raise before the work, not after it, where nothing can be written."""
    if not out.parent.is_dir():
        raise GxError(f"the folder {out.parent} does not exist; make it, or write elsewhere with --out")


def when_and_where() -> dict[str, str]:
    """Date and machine of a result."""
    import datetime
    import os
    import platform
    from importlib.metadata import version

    machine = f"{platform.machine()}, {os.cpu_count()} cores, ale-py {version('ale-py')}"
    return {"date": datetime.date.today().isoformat(), "machine": machine}


def _sentence(found: Any) -> str:
    shown = found.as_json()
    lag = "no event seen" if shown["lag_steps"] is None else f"certain {shown['lag_steps']:g} steps before"
    text = f"{found.game}: {found.event}, {lag}; {found.events} events in {found.steps} steps; "
    if not found.flags:
        return f"{text}no flag; depth {found.depth}"
    return (
        f"{text}flag {'; '.join(map(str, found.flags))}: precision {shown['precision']:.3f}, recall "
        f"{shown['recall']:.3f} on {shown['checked_events']} fresh events, {shown['lead_steps']:g} steps before; "
        f"depth {found.depth}"
    )


def _write(
    out: Path, name: str, found: dict[str, Any], settings: dict[str, int], command: str = "find-flags"
) -> None:
    """Add one game to the file, in one piece, with what is needed to repeat it."""
    import json

    content = json.loads(out.read_text()) if out.exists() else {"games": {}}
    options = " ".join(f"--{key} {value}" for key, value in settings.items())
    content["games"][name] = {
        "command": f"rlpd-gx atari {command} {name} {options}",
        **when_and_where(),
        **found,
    }
    content["games"] = dict(sorted(content["games"].items()))
    draft = out.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(out)
