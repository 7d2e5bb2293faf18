"""`rlpd-gx export` and `rlpd-gx play`."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="New folder for policy.safetensors and policy.json.")],
) -> None:
    """Write policy and guard of a run into one folder, to be loaded with `gx.load_policy`."""
    from rlpd_gx.deploy.export import Export

    Export.of_run(run).write(out)
    typer.echo(f"policy and guard written to {out}; load them with rlpd_gx.load_policy({str(out)!r})")


def play(
    policy: Annotated[Path, typer.Argument(help="Folder of a run, or of an exported policy.")],
    out: Annotated[Path, typer.Option(help="The video, an .mp4 file.")] = Path("video.mp4"),
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes to show.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the first episode.")] = 2_000_000,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw actions instead of taking the mode.")
    ] = False,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Cut each episode after so many steps.")
    ] = None,
) -> None:
    """Film a policy under its guard; each intervention shows the proposed and the executed action."""
    from rlpd_gx.deploy.play import play as film

    played = film(policy, out, episodes=episodes, seed=seed, sample=sample, max_steps=max_steps)
    returns = ", ".join(f"{value:.1f}" for value in played.returns)
    typer.echo(
        f"{out}: {played.frames} frames, {played.corrections} corrections in {played.steps} steps, returns "
        f"{returns}"
    )
