import json


def test_list_shows_all_games(command):
    code, output, _ = command("atari", "list")
    assert code == 0
    assert sum(line.startswith("│") for line in output.splitlines()) >= 26
    assert "Seaquest" in output
    assert "knocked back" in output


def test_find_flags_writes_what_it_found_beside_what_was_there(command, tmp_path):
    out = tmp_path / "flags.json"
    out.write_text(json.dumps({"games": {"Zaxxon": {"depth": 3}}}))
    settings = ("--deaths", 8, "--steps", 900, "--lags", 1)
    code, output, _ = command("atari", "find-flags", "asterix", *settings, "--out", out)
    assert code == 0
    assert output.startswith("Asterix: life lost, certain 3")
    games = json.loads(out.read_text())["games"]
    assert list(games) == ["Asterix", "Zaxxon"]
    assert games["Asterix"]["command"] == (
        "rlpd-gx atari find-flags Asterix --deaths 8 --steps 900 --lags 1 --seed 0"
    )
    assert 8 <= games["Asterix"]["events"] <= 16
    assert not list(tmp_path.glob("*.draft"))


def test_mistakes(command, tmp_path):
    assert command("atari", "find-flags", "Zelda")[2].startswith("rlpd-gx: 'Zelda' is not one of the 26")
    code, _, error = command("atari", "find-flags", "Pong", "--out", tmp_path / "none" / "flags.json")
    assert code == 2
    assert "does not exist" in error
