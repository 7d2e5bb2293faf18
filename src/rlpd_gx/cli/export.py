"""`rlpd-gx export` and `rlpd-gx play`."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="New folder for policy.safetensors and policy.json.")],
) -> None:
    """Write policy and guard of a run into one folder, to be loaded with `gx.load_policy`."""
    from rlpd_gx.loop.export import Export

    Export.of_run(run).write(out)
    typer.echo(f"policy and guard written to {out}; load them with rlpd_gx.load_policy({str(out)!r})")
