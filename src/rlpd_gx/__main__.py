"""`python -m rlpd_gx` is `rlpd-gx`."""

from rlpd_gx.cli import main

main()
