import sys

import pytest

from rlpd_gx.cli import main


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `rlpd-gx` in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("RLPD_GX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rlpd-gx", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run
