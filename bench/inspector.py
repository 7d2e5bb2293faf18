"""The inspector over many long runs: processor time until the first rows are shown, and memory.

    python -m bench.inspector

Fifty runs of 100,000 steps; three of them with an audit of 30,000 corrections. Needs Chromium.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "report" / "inspector"))
from browser import CHROMIUM, Browser
from written_runs import write_run

ROWS = "document.querySelectorAll('table.runs tbody tr').length"


def main() -> None:
    if CHROMIUM is None:
        sys.exit("this measurement needs Chromium (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        for i in range(50):
            write_run(
                Path(folder) / f"run-{i:02d}",
                steps=100_000,
                log_every=250,
                seed=i,
                audit=i < 3,
                corrected=0.3,
            )
        command = [sys.executable, "-m", "rlpd_gx", "watch", folder, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().split()[1]
            browser = Browser()
            try:
                measure(browser, server.pid, url)
            finally:
                browser.close()
                server.terminate()


def measure(browser: Browser, server: int, url: str) -> None:
    browser.size(1280)
    browser.call("Performance.enable")
    print(f"{'':24}{'server, s':>10}{'browser, s':>12}   (processor time)")
    before = seconds(server)
    print(f"{'start':24}{before:10.2f}")
    browser.open(url)
    browser.wait(f"{ROWS} > 0")
    print(f"{'first rows of the table':24}{seconds(server) - before:10.2f}{tasks(browser):12.2f}")
    browser.wait(f"{ROWS} === 50")
    print(f"{'all 50 runs':24}{seconds(server) - before:10.2f}{tasks(browser):12.2f}")
    before, drawn = seconds(server), tasks(browser)
    browser.run("location.hash = '#/run/run-00'")
    browser.wait("document.querySelectorAll('.chart svg').length > 6")
    print(f"{'one run, with its audit':24}{seconds(server) - before:10.2f}{tasks(browser) - drawn:12.2f}")
    peak = Path(f"/proc/{server}/status").read_text().partition("VmHWM:")[2].split()[0]
    print(
        f"largest memory of the server: {int(peak) / 1000:.0f} MB; page: {page_size(browser) / 1000:.0f} kB"
    )


def seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tasks(browser: Browser) -> float:
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return {m["name"]: m["value"] for m in metrics}["TaskDuration"]


def page_size(browser: Browser) -> int:
    return browser.run("fetch('/').then((r) => r.text()).then((t) => t.length)")


if __name__ == "__main__":
    main()
