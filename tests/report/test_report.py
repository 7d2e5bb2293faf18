import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlpd_gx.errors import GxError
from rlpd_gx.report import write_comparison, write_report
from rlpd_gx.report.charts import Series, axis_number, binned, chart, number, running_mean, ticks
from rlpd_gx.report.records import read_run
from rlpd_gx.report.words import comparison_text, results_text

VOID = {"meta", "line", "circle", "path", "polyline"}


class Page(HTMLParser):
    """The text of a page by place, refusing tags that do not match."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag == "path":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in VOID and tag not in self.open[-1:]:
            return
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((tuple(self.open), data.strip()))

    def text(self, tag: str | None = None) -> str:
        return "\n".join(text for path, text in self.texts if tag is None or tag in path)


CONFIG = {
    "env": "Hopper-v5",
    "preset": "rlpd-gx",
    "rules": "rlpd_gx.envs.mujoco:power",
    "seed": 3,
    "hidden_sizes": [256, 256],
    "layer_norm": True,
    "command": "rlpd-gx train --env Hopper-v5 --out 'runs/<b> & \"c\"'",
}
COUNTS = {"steps": 4000, "corrections": 321, "forbidden_proposals": 300, "near_misses": 17}
EVALUATION = COUNTS | {"steps": 77, "forbidden_executed": 0, "returns": [1234.5, 1300.0], "mean": 1267.25}
RESULT = {
    "env": "Hopper-v5",
    "steps": 4000,
    "updates": 81234,
    "unsafe_events_watched": True,
    "training": COUNTS | {"forbidden_executed": 0, "inevitable": 0, "unsafe_events": 12},
    "evaluation": EVALUATION,
    "audit": {
        "proposals": 4000,
        "largest_distance": 0.98765,
        "rules": {"power": {"blocked": 41, "depth": 1.5}, "sine": {"blocked": 43}},
        "reasons": {},
    },
    "seconds": {"total": 3725.4},
}


def train_row(step: int) -> dict:
    rates = {"corrections_rate": 0.08, "forbidden_proposals_rate": 0.07, "near_misses_rate": 0.01}
    return {
        "kind": "train",
        "step": step,
        "critic_loss": 2.0 / step,
        "q_mean": step / 7,
        "odd_one": 1.0,
    } | rates


ROWS = [
    *(train_row(step) for step in range(100, 4001, 100)),
    *(
        {"kind": "episode", "step": step, "lane": 0, "return": step / 3, "unsafe_events": int(step == 1500)}
        for step in range(50, 4001, 50)
    ),
    *({"kind": "evaluation", "step": step, **EVALUATION} for step in (2000, 4000)),
]


def write(folder, config=CONFIG, result=RESULT, rows=ROWS):
    """A run folder; None leaves a file out."""
    files = {"config.json": config, "result.json": result, "versions.json": {"torch": "9.8.7"}}
    for name, value in files.items():
        if value is not None:
            (folder / name).write_text(json.dumps(value))
    if rows is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def data(folder) -> dict:
    """What the page of a run holds."""
    path = write_report(folder)
    assert path == folder / "report.html"
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_the_figures_of_a_run_are_in_its_page(tmp_path):
    write(tmp_path)
    found = data(tmp_path)
    (run,) = found["runs"].values()
    assert (run["step"], run["score"], run["corrections"], run["unsafe_events"]) == (4000, 1267.25, 321, 12)
    assert (run["command"], run["versions"]) == (CONFIG["command"], {"torch": "9.8.7"})
    assert run["series"]["train/q_mean"]["x"] == list(range(100, 4001, 100))
    assert run["series"]["train/q_mean"]["y"][0] == pytest.approx(100 / 7, rel=1e-5)
    assert [e["returns"] for e in run["evaluations"]] == [[1234.5, 1300.0]] * 2
    assert run["episode_list"]["unsafe"].index(1) == 29  # the one that ended at step 1,500
    assert found["overview"]["runs"][0]["status"] == "finished"


def test_the_page_needs_nothing_else(tmp_path):
    write(tmp_path)
    html = write_report(tmp_path).read_text()
    assert not re.search(r"<(link|img|iframe)[^>]*(href|src)=.http", html)
    assert not re.search(r"@import|url\(", html)


def test_what_is_missing_is_said(tmp_path):
    (run,) = data(write(tmp_path, config=None, result=None))["runs"].values()
    assert run["status"] == "damaged"
    assert "config.json is missing" in " ".join(run["notes"])
    with pytest.raises(GxError, match="absent holds no run"):
        write_report(tmp_path / "absent")


def test_a_run_that_was_stopped_is_shown_as_far_as_it_went(tmp_path):
    write(tmp_path, result=None)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 41\n')
    (tmp_path / "versions.json").write_text("{")
    (run,) = data(tmp_path)["runs"].values()
    assert (run["status"], run["step"], run["unsafe_events"]) == ("stopped", 4000, 1)
    notes = " ".join(run["notes"])
    assert "1 damaged lines of metrics.jsonl" in notes
    assert "versions.json cannot be read" in notes


def counts(folder) -> dict[str, list[str]]:
    """The table of counts on the terminal, row by row."""
    lines = results_text(read_run(folder)).splitlines()
    return {line[:35].strip(): re.split(r"  +", line[35:].strip()) for line in lines[2:]}


def test_what_nobody_watched_is_not_called_none(tmp_path):
    rows = [row | ({"unsafe_events": 0} if row["kind"] == "episode" else {}) for row in ROWS]
    training = RESULT["training"] | {"unsafe_events": 0}
    write(tmp_path, result=RESULT | {"unsafe_events_watched": False, "training": training}, rows=rows)
    assert data(tmp_path)["overview"]["runs"][0]["watched"] is False
    assert counts(tmp_path)["Unsafe events"] == ["not watched", "not watched"]
    write(tmp_path, result=RESULT | {"unsafe_events_watched": True, "training": training}, rows=rows)
    assert data(tmp_path)["overview"]["runs"][0]["unsafe_events"] == 0
    assert counts(tmp_path)["Unsafe episodes"] == ["0 of 80"]


def test_a_guard_that_only_prices_actions_has_no_corrections(tmp_path):
    write(tmp_path, result=RESULT | {"guard": "lagrangian", "corrects": False})
    assert counts(tmp_path)["Corrections"] == ["corrects nothing", "corrects nothing"]
    write(tmp_path, result=RESULT | {"corrects": True})
    assert "corrects nothing" not in counts(tmp_path)["Corrections"]


def test_what_was_stopped_is_shown_and_older_runs_say_nothing(tmp_path):
    label = "Stopped: nothing could be executed"
    write(tmp_path, result=RESULT | {"training": RESULT["training"] | {"stopped": 4}})
    assert counts(tmp_path)[label] == ["4", "–"]
    write(tmp_path, result=RESULT | {"guard": "lagrangian", "corrects": False})
    assert counts(tmp_path)[label] == ["corrects nothing", "corrects nothing"]


def test_what_was_inevitable_stands_beside_what_was_executed(tmp_path):
    training = RESULT["training"] | {"forbidden_executed": 3, "inevitable": 2}
    run = data(write(tmp_path, result=RESULT | {"training": training}))["overview"]["runs"][0]
    assert (run["forbidden_executed"], run["inevitable"]) == (3, 2)
    assert counts(tmp_path)["inevitable: no action was allowed"][0] == "2"


@pytest.mark.parametrize(("guard", "rules"), [("none", CONFIG["rules"]), ("no rules", "")])
def test_an_unguarded_run_has_no_corrections(tmp_path, guard, rules):
    run = data(write(tmp_path, CONFIG | {"rules": rules}, RESULT | {"guard": guard}))["overview"]["runs"][0]
    assert run["guard"] == guard
    assert counts(tmp_path)["Corrections"] == ["no guard", "no guard"]


@example(last=2_500, width=720)  # a label on the right edge
@example(last=1_250_000, width=350)
@given(last=st.integers(1, 10**8), width=st.sampled_from([350, 720]))
def test_no_label_is_clipped(last, width):
    drawn = chart([Series("x", ([0.0, float(last)], [0.0, 1.0]))], last, width=width)
    labels = re.findall(r'class="tick middle" x="([\d.]+)" y="[\d.]+">([^<]*)<', drawn)
    assert labels
    for x, text in labels:
        half = 3.4 * len(text)  # half a label in 11 px type
        assert half <= float(x) <= width - half


def test_a_comparison_links_both_runs_and_overlays_their_curves(tmp_path):
    guarded, bare = tmp_path / "run", tmp_path / "run-unguarded"
    for folder, guard, rate in ((guarded, "guardian", 0.01), (bare, "none", 0.03)):
        folder.mkdir()
        write(
            folder,
            result=RESULT | {"guard": guard},
            rows=[{**row, "unsafe_events_rate": rate} for row in ROWS],
        )
        write_report(folder)
    (bare / "play.mp4").touch()
    found = Page(write_comparison([guarded, bare]).read_text())
    links = [attrs["href"] for tag, attrs in found.tags if tag == "a"]
    assert [(guarded / link).resolve() for link in links] == [guarded / "report.html", bare / "report.html"]
    assert [attrs["src"] for tag, attrs in found.tags if tag == "video"] == ["../run-unguarded/play.mp4"]
    lines = [attrs["class"] for tag, attrs in found.tags if tag == "polyline"]
    assert lines == ["line line c1", "line line c2"] * 4
    assert "1 of 80" in found.text("table")
    assert found.text("thead").split("\n") == ["guardian", "no guard"] * 2
    events = [
        attrs["aria-label"] for tag, attrs in found.tags if "from 0 to 40;" in attrs.get("aria-label", "")
    ]
    assert len(events) == 1  # 0.01 of 4,000 steps
    assert "no guard: 41 points from 0 to 120" in events[0]


def test_runs_with_the_same_guard_are_compared_by_the_names_of_their_folders(tmp_path):
    folders = [tmp_path / "slow", tmp_path / "fast"]
    for folder in folders:
        folder.mkdir()
        write(folder)
    table = comparison_text([read_run(folder) for folder in folders])
    assert re.search(r"^Training +slow +fast$", table, re.M)
    assert re.search(r"^  Corrections +321 +321$", table, re.M)
    assert max(map(len, table.splitlines())) <= 80


@given(
    low=st.floats(-1e300, 1e300),
    high=st.floats(-1e300, 1e300),
    count=st.integers(2, 8),
    percent=st.booleans(),
)
def test_ticks_are_round_and_cover_the_range(low, high, count, percent):
    low, high = sorted((low, high))
    found = ticks(low, high, count)
    step = found[1] - found[0]
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= high - 1e-6 * step
    assert 2 <= len(found) <= count + 3
    if step > 1e-4 * max(map(abs, found)) and not percent:
        assert len({axis_number(tick, found) for tick in found}) == len(found)


@pytest.mark.parametrize(
    ("among", "percent", "told"),
    [
        ([0, 5_000, 10_000, 15_000], False, ["0", "5k", "10k", "15k"]),
        ([0, 2_500, 5_000], False, ["0", "2,500", "5,000"]),
        ([-0.5, 0.0, 0.5], False, ["-0.5", "0.0", "0.5"]),
        ([0, 2.5e6], False, ["0", "2.5M"]),
        ([0, 0.025, 0.05], True, ["0.0%", "2.5%", "5.0%"]),
        ([0, 2e-5], False, ["0", "2e-05"]),
    ],
)
def test_ticks_read_well(among, percent, told):
    assert [axis_number(tick, among, percent) for tick in among] == told


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e9, 1e9)), min_size=1, max_size=60))
def test_all_points_lie_inside_the_picture(points):
    series = Series("x", ([float(step) for step, _ in points], [value for _, value in points]))
    drawn = chart([series], 10**6, width=700, height=260)
    spots = re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', drawn)
    if (line := re.search(r' points="([^"]*)"', drawn)) is not None:
        spots += re.findall(r"([-\d.]+),([-\d.]+)", line[1])
    assert len(spots) == len(points)
    assert all(58 <= float(x) <= 674 and 11.9 <= float(y) <= 218.1 for x, y in spots)


def test_long_series_are_shortened_honestly():
    points = ([float(n) for n in range(1000)], [float(n % 2) for n in range(1000)])
    steps, values = binned(points)
    assert len(steps) == 334
    assert values[0] == pytest.approx(1 / 3)
    assert sum(v * 3 for v in values[:-1]) + values[-1] == pytest.approx(500)
    assert running_mean(([1.0, 2.0, 3.0], [3.0, 5.0, 10.0]), 2)[1] == [3.0, 4.0, 7.5]
    assert [number(n) for n in (1234567, 0.123456, 12345.678, -3.0)] == [
        "1,234,567",
        "0.1235",
        "12,345.7",
        "-3",
    ]


def test_rates_of_zero_are_drawn_at_the_bottom():
    drawn = chart([Series("x", ([1.0, 2.0], [0.0, 0.0]))], 2, percent=True)
    assert re.findall(r'y="[^"]*">([^<]*%)<', drawn)[0] == "0.0%"
    assert "-" not in re.sub(r"<svg[^>]*>|stroke-[a-z]*", "", drawn).replace("environment steps", "")
