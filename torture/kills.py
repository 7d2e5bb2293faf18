"""Kills, full disks and damaged files: a resumed run equals an uninterrupted one, or one sentence says why not."""

import shutil
from pathlib import Path

from torture import Row
from torture._runs import (
    CRASHED,
    DONE,
    KILLED,
    REFUSED,
    Bench,
    Fault,
    differences,
    go_on,
    half,
    in_process,
    start,
)


def run(seconds: float, seed: int) -> list[Row]:
    """Half of the time for kills, a quarter each for full disks and for damage."""
    with Bench(seed) as bench:
        return [kills(bench, seconds / 2), full_disks(bench, seconds / 4), damage(bench, seconds / 4)]


def kills(bench: Bench, seconds: float) -> Row:
    """`kill -9` in the middle of the n-th change of the folder, up to three times in one run."""
    row = Row("killed at any file-system call, a resumed run is bit for bit the same")
    count = 0
    for number, kind, folder in bench.trials(seconds):
        faults = [
            Fault(bench.random.randint(1, bench.calls[kind]), "kill")
            for _ in range(bench.random.choice((1, 1, 1, 2, 3)))
        ]
        what = f"trial {number}, {kind}, {faults}"
        problem = ""
        for fault in [*faults, None]:
            known = (folder / "config.json").exists()
            ending = (
                in_process(go_on, folder, fault=fault)
                if known
                else in_process(start, folder, kind, fault=fault)
            )
            count += ending.code == KILLED
            if ending.code not in (DONE, KILLED):
                problem = ending.said.strip().splitlines()[-1]
                break
        if not problem and ending.code == DONE and (wrong := differences(folder, bench.whole[kind])):
            problem = f"{', '.join(wrong)} differ"
        row.record(not problem, f"{what}: {problem}")
    row.note = f"{count} kills in {row.tried} runs; {bench.calls} calls in a whole run"
    return row


def full_disks(bench: Bench, seconds: float) -> Row:
    """The disk is full from the n-th change on; then there is room again."""
    row = Row("on a full disk: one sentence, and later the same run bit for bit")
    for number, kind, folder in bench.trials(seconds):
        fault = Fault(bench.random.randint(1, bench.calls[kind]), "full")
        first = in_process(start, folder, kind, fault=fault)
        problem = _not_a_sentence(first.code, first.said)
        if not problem:
            known = (folder / "config.json").exists()
            second = in_process(go_on, folder) if known else in_process(start, folder, kind)
            if second.code != DONE:
                problem = f"not resumed: {second.said.strip().splitlines()[-1]}"
            elif wrong := differences(folder, bench.whole[kind]):
                problem = f"{', '.join(wrong)} differ"
        row.record(not problem, f"trial {number}, {kind}, {fault}: {problem}")
    return row


def damage(bench: Bench, seconds: float) -> Row:
    """Files of a stopped run are flipped, cut, deleted, emptied or lengthened."""
    row = Row("damaged files: refused in one sentence, or reported, or the same result")
    refused = reported = same = 0
    stopped = {}
    for kind in bench.whole:
        stopped[kind] = bench.folder / f"half-{kind}"
        in_process(half, stopped[kind], kind, 20)
    for number, kind, folder in bench.trials(seconds):
        shutil.copytree(stopped[kind], folder)
        done = [_hurt(bench, folder) for _ in range(bench.random.choice((1, 1, 2, 3)))]
        ending = in_process(go_on, folder)
        problem = _not_a_sentence(ending.code, ending.said)
        if not problem and ending.code == DONE:
            wrong = differences(folder, bench.whole[kind])
            unsaid = [name for name in wrong if name not in ending.said]
            problem = f"{', '.join(unsaid)} differ, and it was not said" if unsaid else ""
            reported += bool(ending.said)
            same += not ending.said
        refused += ending.code == REFUSED
        row.record(not problem, f"trial {number}, {kind}, {'; '.join(done)}: {problem}")
    row.note = f"{refused} refused, {reported} reported, {same} without effect"
    return row


def _hurt(bench: Bench, folder: Path) -> str:
    """Damage one file; what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path, how = bench.random.choice(files), bench.random.choice(("flip", "cut", "delete", "empty", "append"))
    content = bytearray(path.read_bytes())
    place = bench.random.randrange(max(len(content), 1))
    if how == "flip" and content:
        content[place] ^= 1 << bench.random.randrange(8)
    elif how == "cut":
        content = content[:place]
    elif how == "empty":
        content = bytearray()
    elif how == "append":
        content += b"x"
    path.write_bytes(content)
    if how == "delete":
        path.unlink()
    return f"{how} {path.relative_to(folder)} at {place}"


def _not_a_sentence(code: int | None, said: str) -> str:
    """What is wrong with how a process ended, if anything."""
    if code == CRASHED or code not in (DONE, REFUSED):
        return f"exit code {code}: {(said.strip().splitlines() or [''])[-1]}"
    if code == REFUSED and ("\n" in said.strip() or not said.strip()):
        return f"not one sentence: {said!r}"
    return ""
