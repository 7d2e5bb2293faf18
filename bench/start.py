"""How long `rlpd-gx --help` takes beside an interpreter that starts and does nothing: python -m bench.start"""

import resource
import subprocess
import sys

from bench.timing import in_turns, keep, ratio, spread, verdict


def cpu_seconds(*arguments: str) -> float:
    """CPU time of a Python process with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    commands = {"python -c pass": ("-c", "pass"), "rlpd-gx --help": ("-m", "rlpd_gx", "--help")}
    timers = {
        name: lambda arguments=arguments: cpu_seconds(*arguments) for name, arguments in commands.items()
    }
    seconds = in_turns(timers, rounds=15)
    for name, times in seconds.items():
        print(f"{name:20} {spread(times, 1e-3)} ms of CPU time")
    value = ratio(seconds["rlpd-gx --help"], seconds["python -c pass"])
    print(f"ratio {value:.2f}: {verdict(value, 'rlpd-gx --help / a bare interpreter start', most=5)}")
    keep("start")


if __name__ == "__main__":
    main()
