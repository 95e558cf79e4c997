"""Progress: one protocol, heard from several threads, shown as suits standard error."""

import io
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from sojourn._support.progress import (
    Bar,
    Lines,
    Silent,
    Stages,
    by_fraction,
    never_silent,
    progress_bar,
)


class Heard:
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.done = 0.0

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        self.done = done

    def advance(self, amount: float) -> None:
        self.done += amount


def test_fractions_count_once_by_their_cost_from_any_thread() -> None:
    heard = Heard()
    advance = by_fraction(heard, {"short": 1.0, "long": 9.0})
    told = [(part, k / 50) for k in range(51) for part in ("short", "long")] * 2
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: advance(*one), told))
    assert abs(heard.done - 10.0) < 1e-9


def test_lines_begin_where_an_earlier_run_ended_and_never_pass_the_end() -> None:
    clock = iter([0.0, 11.0, 22.0, 33.0])
    file = io.StringIO()
    lines = Lines(file, clock=lambda: next(clock))
    lines.start("runs", total=200.0, done=100.0)
    lines.advance(50.0)
    lines.advance(150.0)
    assert file.getvalue() == "runs: 50%\nruns: 75%, 0:00:11 left\nruns: 100%\n"


def test_a_bar_takes_the_same_calls_and_leaves_nothing_behind() -> None:
    for progress in (Silent(), Bar(Console(file=io.StringIO(), force_terminal=True))):
        progress.start("planning: step 1, uniform")
        progress.start("training", total=10.0, done=4.0)
        progress.advance(6.0)
        if isinstance(progress, Bar):
            progress.close()


def test_one_bar_for_all_stages_never_goes_back() -> None:
    """Phases begin at zero, and confirmations get more seeds; the whole only grows."""
    heard = Heard()
    stages = Stages(heard, {"tune: rung": 0.5, "confirming": 0.3, "drawing": 0.2})
    places = []
    for phase, total, done in (
        ("loading", None, 0.0),
        ("tune: rung 1 of 4", 100.0, 30.0),
        ("tune: rung 4 of 4", 100.0, 88.0),
        ("confirming, seed 1", 4.0, 0.0),
        ("confirming, seed 2", 8.0, 2.0),
        ("drawing the page", None, 0.0),
    ):
        stages.start(phase, total, done)
        places.append(heard.done)
        stages.advance(1.0)
        places.append(heard.done)
    assert places == sorted(places)
    assert places[2] == pytest.approx(15.0) and places[-1] == pytest.approx(80.0)


def test_a_bar_fits_eighty_columns_and_keeps_its_times() -> None:
    file = io.StringIO()
    bar = Bar(Console(file=file, force_terminal=True, width=80, no_color=True))
    bar._bar.start()
    bar.start("tune: rung 1 of 4, 10 of 72 runs, and many words", 100.0, 40.0)
    bar.start("tune: rung 2 of 4, 10 of 72 runs, and many words", 100.0, 50.0)
    bar.close()
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).replace("\r", "\n").splitlines()
    shown = [line for line in lines if "rung 2" in line]
    assert shown and max(map(len, lines)) <= 80
    assert all(re.search(r"… +━.* 50% 0:00:\d\d gone", line) for line in shown)


def test_short_work_says_nothing_where_there_is_no_terminal() -> None:
    code = (
        "from sojourn._support.progress import progress_bar\nwith progress_bar('x') as go: go(1, 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_step_that_takes_long_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line comes although nothing is heard; inner work says its own, then it is the outer again."""
    monkeypatch.setattr("sojourn._support.progress.SECONDS_BETWEEN_LINES", 0.2)
    monkeypatch.setattr("sojourn._support.progress.SECONDS_BETWEEN_LOOKS", 0.02)
    heard = io.StringIO()
    monkeypatch.setattr("sys.stderr", heard)

    def wait_for(line: str) -> None:
        end = time.monotonic() + 30.0
        before = len(heard.getvalue())
        while line not in heard.getvalue()[before:]:
            assert time.monotonic() < end, heard.getvalue()
            time.sleep(0.02)

    with never_silent("analyze: loading"):
        wait_for("analyze: loading\n")
        with progress_bar("simulating") as advance:
            wait_for("simulating\n")
            advance(1, 4)
            wait_for("simulating: 25%\n")
        wait_for("analyze: writing results\n")
    said = heard.getvalue()
    time.sleep(0.3)
    assert heard.getvalue() == said, "nothing when it is over"
