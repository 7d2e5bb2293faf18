"""The inspector in a real browser, with real runs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from tiny_runs import tiny_run
from written_runs import write_run

from rlpd_gx.report.inspector.server import Inspector
from rlpd_gx.report.inspector.static import write_page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="these tests need Chromium, which is not installed (Debian: apt-get install chromium)",
)
HERE = Path(__file__).parent
HOSTILE = "<img src=x onerror='window.hacked=1'>\"&'"
NAMELESS = (  # what a screen reader could not name
    "[...document.querySelectorAll('button, input, select')]"
    ".filter(e => !e.innerText && !e.getAttribute('aria-label') && !e.labels?.length)"
)
ROWS = "[...document.querySelectorAll('table.runs tbody tr')]"


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    browser.size(1280)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A server over runs: two that can be replayed, some written by hand, a damaged and a hostile one."""
    root = tmp_path_factory.mktemp("inspector") / "runs"
    before = os.environ.get("PYTHONPATH", "")
    # the replaying process imports the same rules
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), before])
    walk = {"env": "small_worlds:Walk", "rules": "small_worlds:edge", "steps": 130, "evaluate_every": 65}
    tiny_run(root / "walk", **walk, log_every=10, learning_starts=100)  # random proposals: some are corrected
    tiny_run(root / "push", env="small_worlds:Push", rules="small_worlds:gentle", steps=60, log_every=10)
    for seed in range(3):
        write_run(root / f"seed-{seed}", seed=seed, steps=500)
    damaged = write_run(root / "damaged", steps=100)
    (damaged / "config.json").write_text("{")
    write_run(
        root / ("x" + HOSTILE.replace("/", "")),
        env=HOSTILE,
        preset=HOSTILE,
        rules=(HOSTILE,),
        command=HOSTILE,
    )
    server = Inspector(root, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
    os.environ["PYTHONPATH"] = before


@pytest.fixture(autouse=True)
def harmless(browser, request):
    """No script error, no request to anywhere else, and nothing from a run was executed."""
    browser.errors.clear()
    browser.requests.clear()
    yield
    assert browser.errors == []
    assert all(
        url.startswith(("http://127.0.0.1", "blob:", "data:", "about:", "file:")) for url in browser.requests
    )
    assert not browser.run("window.hacked")


def choose(browser, element, value, event="input"):
    """Give a field a value as a person would."""
    browser.run(
        f"(() => {{ const e = document.getElementById({json.dumps(element)}); e.value = {json.dumps(value)}; "
        f"e.dispatchEvent(new Event({json.dumps(event)})); }})()"
    )


def visit(browser, server, address, until):
    browser.open("about:blank")
    browser.open(server.url + address)
    browser.wait(until)


def test_all_runs_and_what_is_wrong_with_them(browser, home):
    visit(browser, home, "", f"{ROWS}.length === 7")
    text = browser.text("table.runs")
    assert "damaged" in text
    assert "0 inevitable" in text  # always beside what was executed though forbidden
    assert HOSTILE in text
    visit(browser, home, "#/run/damaged", "document.querySelector('.note')")
    assert "config.json cannot be read" in browser.text(".note")
    browser.run("location.hash = '#/run/nowhere'")
    browser.wait("document.querySelector('.note')?.innerText.includes('no such run')")
    browser.open("about:blank")  # it asks again and again; nothing may arrive during the next test
    browser.run("0")
    browser.errors.clear()  # the browser reports each answer 404


def test_compare_runs_and_group_seeds(browser, home):
    visit(browser, home, "", f"{ROWS}.length === 7")
    for name in ("seed-0", "seed-1", "seed-2"):
        browser.run(f"document.getElementById('pick {name}').click()")
    browser.wait("document.querySelector('#comparison')")
    assert browser.text("#comparison thead").split() == ["seed-0", "seed-1", "seed-2"]
    choose(browser, "of", "Training return", "change")
    browser.wait("document.querySelector('figure h3').innerText === 'Training return'")
    assert browser.run("document.querySelectorAll('.chart .line').length") == 3
    browser.run("document.getElementById('group').click()")
    browser.wait("document.querySelector('.chart .band')")
    assert "not a confidence interval" in browser.text("figcaption")
    address = browser.run("location.hash")
    visit(
        browser,
        home,
        address,
        "document.querySelector('.chart .band') && document.querySelector('#comparison')",
    )
    choose(browser, "filter", "push")
    browser.wait(f"{ROWS}.length === 1")


def test_a_run_in_full(browser, home):
    visit(browser, home, "#/run/walk", "document.querySelectorAll('.chart svg').length > 6")
    text = browser.text()
    for words in (
        "Forbidden executed",
        "inevitable",
        "Corrections by rule",
        "edge <b>&amp;</b>",
        "Online fraction (DSS)",
        "Replay at step 130",
    ):
        assert words in text
    browser.run(
        "[...document.querySelectorAll('button')].find(b => b.innerText === 'with unsafe events').click()"
    )
    browser.wait("document.querySelector('button.on').innerText === 'with unsafe events'")
    hostile = browser.run(f"{ROWS}, encodeURIComponent({json.dumps('x' + HOSTILE.replace('/', ''))})")
    visit(browser, home, f"#/run/{hostile}", "document.querySelectorAll('.chart svg').length > 6")
    assert HOSTILE in browser.text()


def test_scrub_jump_filter_try_and_keep_a_moment(browser, home, tmp_path):
    visit(browser, home, "#/run/walk/evaluation/0/0", "document.querySelector('canvas[data-step=\"0\"]')")
    step = "Number(document.querySelector('.scrub').value)"
    assert "the return equals the recorded one" in browser.text()
    browser.press("ArrowRight")
    browser.wait("document.querySelector('canvas[data-step=\"1\"]')")
    browser.press("ArrowRight", shift=True)
    browser.wait(f"{step} === 11")
    assert browser.run("location.hash") == "#/run/walk/evaluation/0/11"
    browser.press("End")
    browser.press("Home")
    browser.wait(f"{step} === 0")
    browser.run(
        "(() => { const s = document.querySelector('.scrub'); s.value = 7; s.dispatchEvent(new Event('input')); })()"
    )
    browser.wait("document.querySelector('canvas[data-step=\"7\"]')")
    # a moment that was corrected: the page, the link and the rules agree about it
    browser.run("location.hash = '#/run/walk'")
    browser.wait("document.querySelector('table.episodes')")
    browser.run(
        "[...document.querySelectorAll('button')].find(b => b.innerText === 'with corrections').click()"
    )
    browser.wait("document.querySelector('table.episodes a')")
    browser.click("table.episodes a")
    browser.wait("document.querySelector('canvas[data-step]')")
    browser.press("n")
    if browser.run(f"{step} === 0"):
        browser.press("c")
    assert "edge <b>&amp;</b>" in browser.text(".verdict")
    assert browser.run("document.querySelectorAll('.action.forbidden').length") >= 1
    browser.click(".rules button")
    browser.wait("document.querySelector('.rules button').getAttribute('aria-pressed') === 'true'")
    browser.press("t")
    browser.wait("document.querySelector('.try .action')")
    browser.click(".try .action[data-action='0']")
    browser.wait("document.querySelector('.try .chip').innerText === 'allowed'")
    browser.run("document.querySelector('.try .action.forbidden').click()")
    browser.wait("document.querySelector('.try .chip').innerText === 'projected'")
    browser.call(
        "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), eventsEnabled=False
    )
    browser.press("s")
    end = time.monotonic() + 60
    while not [*tmp_path.glob("walk-step-*.png")] and time.monotonic() < end:
        time.sleep(0.1)
    assert [*tmp_path.glob("walk-step-*.png")]
    address = browser.run("location.hash")
    here = browser.run(step)
    visit(browser, home, address, f"document.querySelector('canvas[data-step=\"{here}\"]')")
    browser.press(" ")
    browser.wait(
        f"{step} > {here} || document.querySelector('.transport button:nth-child(3)').innerText === '▶'"
    )


def test_a_safe_set_in_two_dimensions(browser, home):
    visit(browser, home, "#/run/push/evaluation/0/3", "document.querySelector('.actions .plane .safe')")
    browser.click("#try")
    browser.wait("document.querySelector('.try .plane')")
    for place in range(2):  # both forces to the right: 1 + 1 > 0.5
        choose(browser, f"try {place}", 1)
        browser.wait(
            f"document.getElementById('try {place}').value === '1' && document.querySelector('.try .barvalue')"
        )
    browser.wait("document.querySelector('.try').innerText.includes('breaks sum by 1.5')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_width_and_both_schemes(browser, home, scheme):
    browser.size(390, 800)
    browser.scheme(scheme)
    try:
        for address, until in [
            ("#/", f"{ROWS}.length === 7"),
            ("#/run/walk", "document.querySelectorAll('.chart svg').length > 6"),
            ("#/run/push/evaluation/0/3", "document.querySelector('.barrow')"),
        ]:
            visit(browser, home, address, until)
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), address
            light = browser.run(
                "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)[0] > 128"
            )
            assert light == (scheme == "light")
            assert browser.run(f"{NAMELESS}.length") == 0
    finally:
        browser.size(1280)
        browser.scheme("light")


def test_a_run_is_followed_while_it_trains_and_until_it_is_killed(browser, home):
    options = {"env": "small_worlds:Walk", "rules": "small_worlds:edge", "steps": 1_000_000, "utd": 0.25,
               "batch-size": 16, "hidden-sizes": "16,16", "ensemble-size": 2, "log-every": 50, "learning-starts": 50,
               "evaluation-episodes": 1, "evaluate-every": 200}  # fmt: skip
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "rlpd_gx", "train", *flags]
    out = home.folder.root / "live"
    visit(browser, home, "", f"{ROWS}.length === 7")
    browser.run("window.neverReloaded = true")
    process = subprocess.Popen(
        [*command, "--out", str(out), "--quiet"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=HERE,
    )
    try:
        row = f"{ROWS}.find(r => r.innerText.includes('live'))"
        browser.wait(f"{row}?.innerText.includes('training')")
        number = f"Number({row}.querySelector('.progress').innerText.replaceAll(',', '').split('/')[0])"
        browser.wait(f"{number} > 0")
        first = browser.run(number)
        browser.wait(f"{number} > {first}")
        browser.run("location.hash = '#/run/live'")
        browser.wait("document.querySelectorAll('.chart svg').length > 4")
        points = "document.querySelector('.chart .dots')?.childElementCount"
        before = browser.run(points) or 0
        browser.wait(f"{points} > {before}")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    browser.wait("document.querySelector('.note')?.innerText.includes('stopped or killed')")
    assert browser.run("window.neverReloaded")


def test_the_same_page_from_a_file(browser, home, tmp_path):
    page = write_page([home.folder.root / "seed-0"], tmp_path / "report.html")
    browser.open("about:blank")
    browser.open(page.as_uri())
    browser.wait("document.querySelectorAll('.chart svg').length > 6")
    assert "saved file" in browser.text("header")
    browser.click("table.episodes a")
    browser.wait("document.body.innerText.includes('recorded corrections')")
    assert browser.requests == [page.as_uri()] or all(
        url.startswith(("file:", "about:", "data:")) for url in browser.requests
    )
