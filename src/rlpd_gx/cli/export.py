"""`rlpd-gx export` and `rlpd-gx play`."""

from pathlib import Path
from typing import Annotated

from rlpd_gx.cli.arguments import Argument, Option


def export(
    run: Annotated[Path, Argument(help="Folder of a run.")],
    out: Annotated[Path, Option(help="New folder for policy.safetensors and policy.json.")],
) -> None:
    """Write policy and guard of a run into one folder, to be loaded with `gx.load_policy`."""
    from rlpd_gx.deploy.export import Export

    Export.of_run(run).write(out)
    print(f"policy and guard written to {out}; load them with rlpd_gx.load_policy({str(out)!r})")


def play(
    policy: Annotated[Path, Argument(help="Folder of a run, or of an exported policy.")],
    out: Annotated[Path, Option(help="The video, an .mp4 file.")] = Path("video.mp4"),
    episodes: Annotated[int, Option(min=1, help="Whole episodes to show.")] = 1,
    seed: Annotated[int, Option(help="Random seed of the first episode.")] = 2_000_000,
    sample: Annotated[bool, Option(help="Sample actions instead of taking the most likely.")] = False,
    max_steps: Annotated[
        int | None, Option(min=1, help="Truncate each episode after this many steps.")
    ] = None,
) -> None:
    """Film a policy under its guard; each correction shows the proposed and the executed action."""
    from rlpd_gx.deploy.play import play as film

    played = film(policy, out, episodes=episodes, seed=seed, sample=sample, max_steps=max_steps)
    returns = ", ".join(f"{value:.1f}" for value in played.returns)
    print(
        f"{out}: {played.frames} frames, {played.corrections} corrections in {played.steps} steps, returns "
        f"{returns}"
    )
