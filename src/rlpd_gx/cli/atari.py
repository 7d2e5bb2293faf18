"""`rlpd-gx atari`: the 26 games, and finding out how a game shows that death is certain."""

from pathlib import Path
from typing import Annotated, Any

from rlpd_gx.cli.arguments import Argument, Option


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
    steps: Annotated[int, Option(min=100, help="Most steps for either.")] = 25_000,
    lags: Annotated[int, Option(min=1, help="Events to go back from to the fatal moment.")] = 10,
    seed: Annotated[int, Option(min=0, help="Of all play.")] = 0,
    out: Annotated[
        Path | None, Option(help="JSON file; games that are in it already keep their place.")
    ] = None,
) -> None:
    """Find conditions on RAM that hold only once an unsafe event is certain, and check them on fresh play."""
    from rlpd_gx.envs.atari import GAMES, find_game
    from rlpd_gx.envs.atari.finding import find

    names = list(GAMES) if game == "all" else [find_game(game).name]
    if out is not None and not out.parent.is_dir():
        from rlpd_gx.errors import GxError

        raise GxError(f"the folder {out.parent} does not exist; make it, or write elsewhere with --out")
    for name in names:
        found = find(name, deaths, steps, lags, seed)
        print(_sentence(found))
        if out is not None:
            settings = {"deaths": deaths, "steps": steps, "lags": lags, "seed": seed}
            _write(out, name, found.as_json(), settings)


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


def _write(out: Path, name: str, found: dict[str, Any], settings: dict[str, int]) -> None:
    """Add one game to the file, in one piece, with what is needed to repeat it."""
    import datetime
    import json
    import os
    import platform
    from importlib.metadata import version

    content = json.loads(out.read_text()) if out.exists() else {"games": {}}
    options = " ".join(f"--{key} {value}" for key, value in settings.items())
    content["games"][name] = {
        "command": f"rlpd-gx atari find-flags {name} {options}",
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, ale-py {version('ale-py')}",
        **found,
    }
    content["games"] = dict(sorted(content["games"].items()))
    draft = out.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(out)
