"""The inspector's server: one page, a JSON API over run folders, and events while runs train.

It binds to 127.0.0.1; elsewhere every request needs a token. It serves what `Folder` has found and nothing by path, so
no request can name a file. It writes nothing.
"""

import hmac
import ipaddress
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rlpd_gx.errors import GxError
from rlpd_gx.loading import raised
from rlpd_gx.report.inspector.document import csp, document
from rlpd_gx.report.inspector.folder import Folder
from rlpd_gx.report.inspector.replayers import Replayer, Replayers
from rlpd_gx.report.inspector.run import WatchedRun
from rlpd_gx.trees import Json

POLL_SECONDS = 1.0
MOST_LISTENERS = 32
MOST_BODY = 1 << 16
COOKIE = "rlpd_gx_watch"


class Inspector(ThreadingHTTPServer):
    """Serves the runs below a folder until `shutdown`."""

    daemon_threads = True

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = Folder(root)
        self.replayers = Replayers()
        self.loopback = _is_loopback(host)
        self.token = "" if self.loopback else secrets.token_urlsafe(24)
        # known to pages that this process served, and to no other site
        self.try_token = secrets.token_urlsafe(24)
        self.listeners = threading.Semaphore(MOST_LISTENERS)
        self.closing = threading.Event()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise GxError(
                f"port {port} on {host} cannot be used: {error.strerror}; choose another --port"
            ) from None
        threading.Thread(target=self._poll, daemon=True).start()

    @property
    def url(self) -> str:
        """Where to point a browser."""
        host, port = str(self.server_address[0]), self.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/" + (f"?token={self.token}" if self.token else "")

    def server_close(self) -> None:
        """Stop polling, and end the processes that replay episodes."""
        self.closing.set()
        self.replayers.close()
        super().server_close()

    def _poll(self) -> None:
        said = False
        while True:
            try:
                self.folder.refresh()
            except Exception as error:  # without this thread, pages would silently stay as they are
                if not said:
                    print(f"note: reading {self.folder.root} {raised(error)}; trying again", file=sys.stderr)
                said = True
            if self.closing.wait(POLL_SECONDS):
                return

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection is no error."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Inspector
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rlpd-gx", ""
    timeout = 60

    def do_GET(self) -> None:
        """Pages, data, pictures and events."""
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if not self._welcome(query):
            return
        # a link may lead to the page, but no other site may start a replay: that runs the code of a run
        site = self.headers.get("Sec-Fetch-Site", "none")
        if url.path != "/" and site not in ("none", "same-origin"):
            self._refuse(HTTPStatus.FORBIDDEN, "other sites may not ask for this")
            return
        folder = self.server.folder
        answers: dict[str, Callable[[], Json]] = {
            "/api/runs": folder.overview,
            "/api/overlay": lambda: folder.overlay(query["of"]),
            "/api/run": lambda: folder.detail(query["name"]),
            "/api/episode": lambda: self._episode(query),
            "/api/polygon": lambda: self._step(query, Replayer.polygon),
        }
        if url.path == "/":
            page = document({"live": True, "try": self.server.try_token if self._may_try() else ""})
            self._send(page, "text/html; charset=utf-8", {"Content-Security-Policy": csp()})
        elif url.path == "/api/events":
            self._events()
        elif url.path == "/api/frame":
            self._answer(lambda: self._step(query, Replayer.frame), "image/png")
        elif url.path in answers:
            self._answer(answers[url.path])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """Try an action: the only request that is more than reading, for pages of this process on this machine."""
        query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if not self._welcome(query):
            return
        given = self.headers.get("X-Try-Token", "")
        if not self._may_try() or not hmac.compare_digest(given.encode(), self.server.try_token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "actions can be tried from this machine's own page only")
            return
        length = self.headers.get("Content-Length", "")
        if urlsplit(self.path).path != "/api/try" or not length.isdigit() or int(length) > MOST_BODY:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no action to try")
            return
        body = self.rfile.read(int(length))
        self._answer(lambda: self._try(json.loads(body)))

    # --- answers -----------------------------------------------------------------------------------------

    def _run(self, query: Json) -> WatchedRun:
        return self.server.folder.runs[query["name"]]

    def _step(self, query: Json, ask: Callable[..., Any], *more: Any) -> Any:
        """What the replayer of a run answers about one step of an episode."""
        key, step = _key(query), int(query["step"])
        return ask(self.server.replayers.of(self._run(query).folder), key, step, *more)

    def _episode(self, query: Json) -> Json:
        """An episode step by step; where it cannot be replayed, the corrections that the audit has recorded."""
        key = _key(query)
        try:
            return self.server.replayers.of(self._run(query).folder, newest=True).episode(key)
        except GxError as error:
            if key["kind"] != "training":
                raise
            run = self._run(query)
            with self.server.folder.lock:
                recorded = run.recorded(key["env"], key["first"], key["length"])
            return {"recorded": recorded, "length": key["length"], "why": str(error)}

    def _try(self, body: Json) -> Json:
        return self._step(body, Replayer.attempt, body["action"])

    def _events(self) -> None:
        """Server-sent events: the version of the folder whenever it changes."""
        if not self.server.listeners.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
            return
        folder, seen = self.server.folder, -1
        try:
            self._head("text/event-stream", {"Connection": "close"})
            while not self.server.closing.is_set():
                with folder.changed:
                    if folder.version == seen:
                        folder.changed.wait(15)
                    now = folder.version
                line = f"data: {now}\n\n" if now != seen else ": still here\n\n"
                seen = now
                self.wfile.write(line.encode())
                self.wfile.flush()
                time.sleep(0.2)  # at most five a second
        except OSError:
            pass
        finally:
            self.server.listeners.release()
            self.close_connection = True

    # --- who may ask -------------------------------------------------------------------------------------

    def _welcome(self, query: Json) -> bool:
        server = self.server
        if server.loopback:
            # another site's name that resolves to this machine must not read anything here
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            if host != "localhost" and not _is_loopback(host):
                self._refuse(HTTPStatus.FORBIDDEN, f"this is not {host[:80]!r}")
                return False
            return True
        given = [query.get("token", ""), _cookie(self.headers.get("Cookie", ""))]
        if any(hmac.compare_digest(text.encode(), server.token.encode()) for text in given):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "open the address with the token that `rlpd-gx watch` printed")
        return False

    def _may_try(self) -> bool:
        return self.server.loopback and _is_loopback(self.client_address[0])

    # --- sending -----------------------------------------------------------------------------------------

    def _answer(self, make: Callable[[], Any], kind: str = "application/json") -> None:
        try:
            made = make()
        except GxError as error:  # before the others: it is a ValueError
            self._refuse(HTTPStatus.CONFLICT, str(error))
        except (KeyError, IndexError, ValueError, TypeError, AttributeError, RecursionError):
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such run, episode or step")
        else:
            if kind == "application/json":
                made = json.dumps(made, allow_nan=False, separators=(",", ":")).encode()
            self._send(made, kind)

    def _send(self, content: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self._head(kind, {"Content-Length": str(len(content))} | (more or {}))
        self.wfile.write(content)

    def _head(self, kind: str, more: dict[str, str], status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        common = {
            "Content-Type": kind,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if self.server.token and status is HTTPStatus.OK:
            common["Set-Cookie"] = f"{COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
        for name, value in (common | more).items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        content = json.dumps({"error": why}).encode()
        self.close_connection = True  # a body that was not read must not become the next request
        self._head("application/json", {"Content-Length": str(len(content)), "Connection": "close"}, status)
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are not news."""


def _key(query: Json) -> Json:
    """Which episode is meant."""
    if query["kind"] == "evaluation":
        return {"kind": "evaluation", "index": int(query["index"])}
    if query["kind"] != "training":
        raise KeyError(query["kind"])
    return {"kind": "training"} | {name: int(query[name]) for name in ("env", "first", "length")}


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
