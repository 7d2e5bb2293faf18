"""Chromium without a window, driven through the DevTools protocol over two pipes: no driver, no dependency."""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. What it logs as an error, and what it requests, is kept."""

    def __init__(self) -> None:
        self.home = tempfile.mkdtemp(prefix="browser-")
        down, self._write = os.pipe()
        self._read, up = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
                 "--disable-dev-shm-usage", f"--user-data-dir={self.home}"]  # fmt: skip
        # Chromium reads commands from file 3 and writes answers to file 4
        shell = ["bash", "-c", f'exec "$@" 3<&{down} 4>&{up}', "bash", str(CHROMIUM), *flags, "about:blank"]
        self.process = subprocess.Popen(
            shell,
            pass_fds=(down, up),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down)
        os.close(up)
        self._buffer, self._number, self.session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        """One command and its answer; events that arrive before it are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 120
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                answer = json.loads(text)
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer["error"]
                    return answer["result"]
                self._note(answer)
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            assert ready, f"the browser did not answer {method}"
            self._buffer += os.read(self._read, 1 << 20)

    def _note(self, event) -> None:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str):
        """The value of an expression; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 90) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, (
                f"never true: {script}; the page says: {self.text()[:1500]}; {self.errors}"
            )
            time.sleep(0.1)

    def text(self, selector: str = "body") -> str:
        return self.run(f"(document.querySelector({json.dumps(selector)}) || {{innerText: ''}}).innerText")

    def click(self, selector: str) -> None:
        self.wait(f"document.querySelector({json.dumps(selector)})")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str, shift: bool = False) -> None:
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, " ": 32, "Tab": 9}
        common = {
            "key": key,
            "modifiers": 8 * shift,
            "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper())),
        }
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def size(self, width: int, height: int = 900) -> None:
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # its own session: only what it started
        self.process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self.home, ignore_errors=True)
