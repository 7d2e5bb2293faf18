"""The server answers this machine, names no file, and lets no other site in."""

import http.client
import json
import threading
import urllib.parse

import pytest
from written_runs import write_run

from rlpd_gx.errors import GxError
from rlpd_gx.report.inspector.document import csp, document
from rlpd_gx.report.inspector.server import Inspector

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def serve(tmp_path):
    """Starts servers on free ports and ends them."""
    running = []

    def start(root, host="127.0.0.1"):
        server = Inspector(root, host, 0)
        server.folder.refresh()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def ask(server, path, method="GET", body=None, **headers):
    """Status, headers and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def test_the_page_and_its_data(tmp_path, serve):
    write_run(tmp_path / "runs" / "a", steps=200)
    server = serve(tmp_path / "runs")
    status, headers, page = ask(server, "/")
    assert status == 200
    assert len(page) < 300_000
    assert headers["Content-Security-Policy"] == csp()
    assert headers["Cache-Control"] == "no-store"
    runs = json.loads(ask(server, "/api/runs")[2])["runs"]
    assert [run["name"] for run in runs] == ["a"]
    assert json.loads(ask(server, "/api/run?name=a")[2])["config"]["env"] == "Hopper-v5"
    assert ask(server, "/api/overlay?of=Evaluation%20return")[0] == 200


NOT_THERE = """
/../../etc/passwd /runs/a/config.json /api/run?name=../secret /api/run?name=%2Fetc /api/run /api/overlay?of=x
/api/run?name=a%00 /api/frame?name=a&kind=evaluation&index=x&step=1 /api/episode?name=a&kind=.. /%2e%2e/x
/api/frame?name=zzz&kind=evaluation&index=0&step=0
"""


@pytest.mark.parametrize("path", NOT_THERE.split())
def test_what_is_not_there(tmp_path, serve, path):
    write_run(tmp_path / "secret", env="SECRET")
    write_run(tmp_path / "runs" / "a", steps=200)
    status, _, content = ask(serve(tmp_path / "runs"), path)
    assert status == 404
    assert b"SECRET" not in content
    assert "error" in json.loads(content)


def test_another_name_for_this_machine_is_refused(tmp_path, serve):
    """DNS rebinding: a page of evil.example that resolves to 127.0.0.1 sends its own name."""
    server = serve(tmp_path)
    port = server.server_address[1]
    for host in (f"evil.example:{port}", "evil.example", "localhost.evil.example", ""):
        assert ask(server, "/api/runs", Host=host)[0] == 403
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert ask(server, "/api/runs", Host=host)[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense", ""])
def test_another_site_cannot_start_a_replay(tmp_path, serve, monkeypatch, site):
    """An <img> of any page may point here; a replay imports the rules and the environment of a run."""
    write_run(tmp_path / "a", steps=200)
    server, begun = serve(tmp_path), []
    monkeypatch.setattr(server.replayers, "of", lambda *asked, **how: begun.append(asked))
    episode = "name=a&kind=evaluation&index=0&step=0"
    for path in ("episode", "frame", "polygon"):
        status, _, content = ask(server, f"/api/{path}?{episode}", Sec_Fetch_Site=site)
        assert (status, b"other sites" in content, begun) == (403, True, [])
    assert ask(server, "/", Sec_Fetch_Site=site)[0] == 200  # a link in a notebook
    for own in ({}, {"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "none"}):
        assert ask(server, "/api/run?name=a", **own)[0] == 200
        ask(server, f"/api/episode?{episode}", **own)
    assert len(begun) == 3


def test_why_a_replay_fails_reaches_the_page(tmp_path, serve, monkeypatch):
    write_run(tmp_path / "a", steps=200)
    server = serve(tmp_path)

    def fails(*asked, **how):
        raise GxError("it cannot be drawn here")

    monkeypatch.setattr(server.replayers, "of", fails)
    status, _, content = ask(server, "/api/frame?name=a&kind=evaluation&index=0&step=0")
    assert (status, json.loads(content)["error"]) == (409, "it cannot be drawn here")


def test_trying_needs_the_token_of_the_page(tmp_path, serve):
    write_run(tmp_path / "a", steps=200)
    server = serve(tmp_path)
    body = json.dumps({"name": "zzz", "kind": "evaluation", "index": 0, "step": 0, "action": 1})
    assert ask(server, "/api/try", "POST", body)[0] == 403
    assert ask(server, "/api/try", "POST", body, X_Try_Token="guess")[0] == 403
    token = server.try_token
    assert ask(server, "/api/try", "POST", body, X_Try_Token=token)[0] == 404  # let in: there is no such run
    assert ask(server, "/api/try", "POST", body, X_Try_Token=token, Host="evil.example")[0] == 403
    assert ask(server, "/api/try", "POST", "[" * 5_000, X_Try_Token=token)[0] == 404
    assert ask(server, "/api/try", "POST", "x" * 70_000, X_Try_Token=token)[0] == 400
    assert ask(server, "/api/runs", "DELETE")[0] == 501


def test_elsewhere_every_request_needs_the_token(tmp_path, serve):
    write_run(tmp_path / "a", steps=200)
    server = serve(tmp_path, "0.0.0.0")
    token = urllib.parse.parse_qs(urllib.parse.urlsplit(server.url).query)["token"][0]
    for path in ("/", "/api/runs", "/api/run?name=a", "/api/events", "/api/runs?token=", "/api/runs?token=x"):
        status, headers, _ = ask(server, path)
        assert status == 403
        assert "Set-Cookie" not in headers
    status, headers, page = ask(server, f"/?token={token}")
    assert status == 200
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert ask(server, "/api/runs", Cookie=cookie)[0] == 200
    assert server.try_token.encode() not in page
    assert ask(server, "/api/try", "POST", "{}", Cookie=cookie, X_Try_Token=server.try_token)[0] == 403


def test_hostile_text_stays_text(tmp_path, serve):
    write_run(
        tmp_path / "a", steps=200, env=HOSTILE, command="</script><script>alert(1)</script>", rules=(HOSTILE,)
    )
    server = serve(tmp_path)
    status, headers, content = ask(server, "/api/run?name=a")
    assert (status, headers["Content-Type"], headers["X-Content-Type-Options"]) == (
        200,
        "application/json",
        "nosniff",
    )
    assert json.loads(content)["env"] == HOSTILE
    page = document({"live": False, "name": HOSTILE + "</script>"}).decode()
    assert HOSTILE not in page
    assert page.count("</script>") == 2


def test_events_arrive_while_a_run_grows(tmp_path, serve):
    run = write_run(tmp_path / "a", steps=200)
    server = serve(tmp_path)
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    first = answer.readline()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "evaluation", "step": 300, "mean": 5.0, "returns": [5.0]}) + "\n")
    answer.readline()
    second = answer.readline()
    while second.strip() in (b"", b": still here"):
        second = answer.readline()
    connection.close()
    assert first.startswith(b"data: ")
    assert int(second[6:]) > int(first[6:])


def test_reading_goes_on_after_an_error(tmp_path, serve, monkeypatch, capsys):
    monkeypatch.setattr("rlpd_gx.report.inspector.server.POLL_SECONDS", 0.01)
    server = serve(tmp_path)
    read, enough, whole = [], threading.Event(), server.folder.refresh

    def refresh():
        read.append(1)
        if len(read) < 4:
            raise RuntimeError("surprise")
        enough.set()
        return whole()

    monkeypatch.setattr(server.folder, "refresh", refresh)
    assert enough.wait(30)
    assert capsys.readouterr().err.count("raised RuntimeError: surprise") == 1


def test_a_run_without_a_policy_shows_what_was_recorded(tmp_path, serve):
    """No checkpoint: an episode is what the audit says of it, and why there is no more."""
    write_run(tmp_path / "a", steps=200, corrected=1.0)
    status, _, content = ask(serve(tmp_path), "/api/episode?name=a&kind=training&env=0&first=50&length=50")
    found = json.loads(content)
    assert status == 200
    assert len(found["recorded"]) == 50
    assert "checkpoint" in found["why"] or "config.json" in found["why"]


def test_mistakes(tmp_path):
    with pytest.raises(GxError, match="no such folder"):
        Inspector(tmp_path / "nowhere", port=0)
    with Inspector(tmp_path, port=0) as taken, pytest.raises(GxError, match="choose another --port"):
        Inspector(tmp_path, port=taken.server_address[1])
