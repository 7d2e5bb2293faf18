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


def test_show_draws_boxes_and_says_what_is_forbidden(command, tmp_path):
    out = tmp_path / "seaquest.png"
    code, shown, error = command("atari", "show", "Seaquest", "--out", out)
    assert code == 0, error
    assert "no diver on board forbids UP" in shown
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    code, _, error = command("atari", "show", "Seaquest", "--out", tmp_path / "nowhere" / "a.png")
    assert code == 2
    assert "does not exist" in error


def test_boxes_are_checked_and_kept(command, tmp_path):
    out = tmp_path / "boxes.json"
    code, shown, error = command("atari", "boxes", "Freeway", "--steps", 60, "--out", out)
    assert code == 0, error
    assert "Freeway: car: 100.0% of" in shown
    kept = json.loads(out.read_text())["games"]["Freeway"]
    assert kept["command"] == "rlpd-gx atari boxes Freeway --steps 60 --seed 0"
    assert kept["objects"]["car"]["share"] == 1


def test_ram_rules_are_measured_beside_look_ahead(command, tmp_path):
    out = tmp_path / "verify.json"
    few = ("--min-steps", 250, "--max-steps", 250, "--depth", 4, "--out", out)
    code, _, error = command("atari", "verify", "Freeway", "--guard", "ram", "--critical", 3, *few)
    assert code == 0, error
    found = json.loads(out.read_text())["games"]["Freeway"]
    assert found["guarded"]["simulated_steps"] == 0
    assert found["agreement"]["critical_states"] <= 3
    code, _, error = command("atari", "verify", "Freeway", "--guard", "none", *few)
    assert code == 2
    assert "--guard is 'none', but it must be one of: look-ahead, ram, both" in error
