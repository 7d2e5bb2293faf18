"""The `rlpd-gx` command. One module per group of commands; heavy imports happen inside the commands."""

import os
import sys

import typer

from rlpd_gx.cli import atari, data, theory, train
from rlpd_gx.cli.collect import collect
from rlpd_gx.cli.export import export, play
from rlpd_gx.cli.guard import guard
from rlpd_gx.errors import GxError

app = typer.Typer(
    help="Safe hybrid offline-to-online reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(train.with_flags(train.train))
app.command()(train.evaluate)
app.command()(export)
app.command()(play)
app.command()(guard)
app.add_typer(theory.app, name="theory")
app.add_typer(data.app, name="data")
app.add_typer(atari.app, name="atari")
app.command()(collect)


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads, or a busy neighbour costs 10x
    try:
        app()
    except GxError as error:
        print(f"rlpd-gx: {error}", file=sys.stderr)
        sys.exit(2)
