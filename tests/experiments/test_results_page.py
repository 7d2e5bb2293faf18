"""The page of results: complete, without network, and fitting a phone in a real browser."""

import json
import re
import shutil
import subprocess

import pytest
from made_rows import TASKS, made_rows, write

from rlpd_gx.cli import main
from rlpd_gx.experiments.reproduced import NAMES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """<script>
const wide = [...document.querySelectorAll("main *")].filter(
  e => !e.closest(".wide") && !e.closest("svg") && e.getBoundingClientRect().right > innerWidth + 1);
document.title = JSON.stringify({
  width: document.documentElement.scrollWidth, window: innerWidth, wide: wide.map(e => e.outerHTML.slice(0, 80)),
  loaded: performance.getEntriesByType("resource").length, figures: document.querySelectorAll("figure > svg").length,
});
</script>"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in NAMES:
        games = TASKS.get(name, ("Boxing", "Freeway"))
        write(
            folder,
            name,
            made_rows(name, lambda game, variant: 30.0 if variant == "RLPD-GX" else 10.0, games=games),
        )
    return folder


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["rlpd-gx", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_page_and_markdown_have_every_experiment(results, monkeypatch):
    assert run(monkeypatch, "report", results) == 0
    assert run(monkeypatch, "report", results, "--markdown", "--out", results / "RESULTS.md") == 0
    page, text = (results / "report.html").read_text(), (results / "RESULTS.md").read_text()
    for name in NAMES:
        assert f'id="{name}"' in page
        assert f"rlpd-gx reproduce {name} --scale cpu" in text
    assert "reported by the paper" in page
    assert "impossible as stated" in text
    assert not re.search(r"(src|href)=\"(?!#)|@import|url\(", page)
    assert "\n|" in text


def test_the_command_asks_for_data_where_somebody_brought_it_and_notes_stand_above(tmp_path, monkeypatch):
    rows = made_rows("constraints", lambda game, variant: 1.0, games=("Hopper",))
    for row in rows:
        row["settings"]["offline"] = "hopper-v5-ladder.hdf5"
    write(tmp_path, "constraints", rows)
    write(tmp_path, "shield", made_rows("shield", lambda game, variant: 1.0, games=("Freeway",)))
    (tmp_path / "notes.txt").write_text("Times <1> are of the beginning.\n\n")
    assert run(monkeypatch, "report", tmp_path) == 0
    assert (tmp_path / "report.html").read_text().count("<p>Note: Times &lt;1&gt; are") == 1
    assert run(monkeypatch, "report", tmp_path, "--markdown", "--out", tmp_path / "RESULTS.md") == 0
    text = (tmp_path / "RESULTS.md").read_text()
    assert "reproduce constraints --scale cpu --games Hopper --data FOLDER\n" in text
    assert "reproduce shield --scale cpu --games Freeway\n" in text
    assert text.count("\n\nNote: Times <1> are of the beginning.\n\n") == 1


def test_a_folder_without_tables_is_one_sentence(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "report", tmp_path) == 2
    assert "holds no table of an experiment" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [400, 1100])
def test_in_a_browser(results, monkeypatch, width, tmp_path):
    run(monkeypatch, "report", results)
    probe = tmp_path / "page.html"
    probe.write_text((results / "report.html").read_text().replace("</body>", PROBE + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    shown = subprocess.run(
        [CHROMIUM, *flags, profile, probe.as_uri()], capture_output=True, text=True, timeout=180
    )
    found = json.loads(
        re.search(r"<title>(.*?)</title>", shown.stdout)[1].replace("&gt;", ">").replace("&lt;", "<")
    )
    assert found["loaded"] == 0
    assert found["figures"] >= 10
    assert found["wide"] == []
    assert found["width"] <= found["window"]
