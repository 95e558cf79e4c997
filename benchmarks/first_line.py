"""Time from typing a command to its first line, and to the sentence about a cheap mistake.

Each command is started as a user starts it, in a fresh process on a terminal (a pseudo-terminal), in a
folder made by ``sojourn new`` (plus a small trained run for the commands that read one). The clock
stops at the first byte that the terminal shows, and the command is then ended; for a mistake it stops
when the command has ended, since its sentence may follow a line that says what is read. Printed: the median
and the least of several starts, and the processor time until then (median), which another program on the
machine changes less. Targets for the median: a second for every command, two for a mistake. Bytecode is cached, as pip and a first start leave it, also where the environment
forbids it.
"""

import argparse
import contextlib
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST_LINE, MISTAKE = 1.0, 2.0
LONGEST = 120.0
"""Seconds to the first line of a command, and to the sentence about a mistake."""

COMMANDS = {
    "--help": "--help",
    "--version": "--version",
    "analyze": "analyze fleet.csv --concurrency 5",
    "plan": "plan fleet.csv",
    "simulate": "simulate fleet.csv --concurrency 5",
    "explore": "explore fleet.csv --no-open",
    "fleet estimate": "fleet estimate log.csv",
    "new": "new other",
    "train": "train experiment.toml --out first",
    "tune": "tune experiment.toml --out second",
    "calibrate": "calibrate experiment.toml",
    "demo": "demo --out third",
    "report": "report trained",
    "compare": "compare trained",
    "figure": "figure trained",
    "watch": "watch trained --no-open",
    "deploy init": "deploy init app",
}
MISTAKES = {
    "no such file": "analyze nowhere.csv",
    "no such command": "analyse fleet.csv",
    "no such rule": "train wrong.toml",
    "no experiment": "tune nowhere.toml",
    "no run": "report nowhere",
}


def processor_seconds(process: int) -> float:
    """What a process has taken so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_byte(arguments: list[str], folder: Path, *, whole: bool = False) -> tuple[float, float]:
    """Seconds until the program says something, and is ended, or (``whole``) until it ends by itself.

    On the clock, and of the processor.
    """
    ours, theirs = pty.openpty()
    begun = time.perf_counter()
    process = subprocess.Popen(
        arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    select.select([ours], [], [], LONGEST)
    taken, used = time.perf_counter() - begun, processor_seconds(process.pid)
    if not whole:
        process.terminate()
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while os.read(ours, 65536):
            used = processor_seconds(process.pid) if whole else used
    process.wait()
    os.close(ours)
    return (time.perf_counter() - begun if whole else taken), used


def cache_bytecode(folder: Path) -> None:
    """Let child processes keep the bytecode of what they import in ``folder``."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")


def prepare(folder: Path) -> Path:
    """The folder of ``sojourn new`` with a trained run and an experiment with a mistake in it."""
    sojourn = [sys.executable, "-m", "sojourn"]
    subprocess.run([*sojourn, "new", "mine"], cwd=folder, check=True, capture_output=True)
    mine = folder / "mine"
    train = [*sojourn, "train", "experiment.toml", "--out", "trained"]
    subprocess.run(train, cwd=mine, check=True, capture_output=True)
    text = (mine / "experiment.toml").read_text(encoding="utf-8")
    (mine / "wrong.toml").write_text(f'rule = "no-such-rule"\n{text}', encoding="utf-8")
    return mine


def main() -> None:
    """Measure every command; exit with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=3)
    starts = parser.parse_args().starts
    late = []
    with tempfile.TemporaryDirectory() as made:
        cache_bytecode(Path(made))
        folder = prepare(Path(made))
        print(f"{'seconds':24} median  least  processor")
        for kind, limit in ((COMMANDS, FIRST_LINE), (MISTAKES, MISTAKE)):
            for name, typed in kind.items():
                line = [sys.executable, "-m", "sojourn", *typed.split()]
                whole = kind is MISTAKES
                first_byte(line, folder, whole=whole)  # caches bytecode
                taken, used = zip(
                    *(first_byte(line, folder, whole=whole) for _ in range(starts)), strict=True
                )
                seconds = statistics.median(taken)
                late += [name] * (seconds > limit)
                print(
                    f"{name:24} {seconds:6.2f} {min(taken):6.2f} {statistics.median(used):10.2f}",
                    flush=True,
                )
    if late:
        sys.exit(f"later than the target: {', '.join(late)}")


if __name__ == "__main__":
    main()
