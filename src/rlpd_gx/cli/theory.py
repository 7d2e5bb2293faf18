"""`rlpd-gx theory`: the guarded Bellman operator as a tool."""

import typer

app = typer.Typer(help="Exact guarded solutions of tabular MDPs.", no_args_is_help=True)
