"""Time from typing a command to its first line, and to the sentence about a cheap mistake.

Each command is started as a user starts it, in a fresh process on a terminal (a pseudo-terminal), in a
folder made by ``sojourn new`` (plus a small trained run for the commands that read one). The clock
stops at the first byte that the terminal shows, and the command is then ended; for a mistake it stops
when the command has ended, since its sentence may follow a line that says what is read. Printed: the median of
several starts, and the same in units of a bare ``python -c pass``. Targets: a second for every command,
two for a mistake.
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


def first_byte(arguments: list[str], folder: Path, *, whole: bool = False) -> float:
    """Seconds until the program says something, and is ended, or (``whole``) until it ends by itself."""
    ours, theirs = pty.openpty()
    begun = time.perf_counter()
    process = subprocess.Popen(
        arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    select.select([ours], [], [], LONGEST)
    taken = time.perf_counter() - begun
    if not whole:
        process.terminate()
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while os.read(ours, 65536):
            pass
    process.wait()
    os.close(ours)
    return time.perf_counter() - begun if whole else taken


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
        folder = prepare(Path(made))
        bare = statistics.median(
            first_byte([sys.executable, "-c", "print()"], folder) for _ in range(starts)
        )
        print(f"{'python -c print()':24} {bare:6.2f} s")
        for kind, limit in ((COMMANDS, FIRST_LINE), (MISTAKES, MISTAKE)):
            for name, typed in kind.items():
                line = [sys.executable, "-m", "sojourn", *typed.split()]
                whole = kind is MISTAKES
                seconds = statistics.median(
                    first_byte(line, folder, whole=whole) for _ in range(starts)
                )
                late += [name] * (seconds > limit)
                print(f"{name:24} {seconds:6.2f} s {seconds / bare:6.0f} times", flush=True)
    if late:
        sys.exit(f"later than the target: {', '.join(late)}")


if __name__ == "__main__":
    main()
