"""A pilot run in a process of its own: settings in, rows of its history out, as they come.

``python -m sojourn.live.pilot`` reads one line of JSON and trains on the digits in virtual time. It
ends when its standard input does, so that nothing is left behind whatever happens to who started
it.
"""

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping

import numpy as np

from sojourn._support.numbers import finite
from sojourn.errors import SojournError
from sojourn.fleet import Network
from sojourn.live.settings import Settings
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.calibrate import curvature
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.jobs import using_threads
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack

ROWS = 40
"""Evaluations, at times common to all pilots of a fleet."""
SEED = 0
Say = Callable[[Mapping[str, object]], None]


def run(settings: Settings, say: Say) -> None:
    """Train with ``settings``; reports the curvature, every row, and how it ended."""
    assert settings.horizon is not None
    network, time = settings.network, settings.horizon
    experiment = Experiment(
        fleet_name="explored",
        fleet=settings.fleet,
        strategies=(),
        seeds=(SEED,),
        pilot_seeds=(),
        time=time,
        partition=settings.partition,
    )
    with using_threads(1):
        problem = build_problem(experiment, SEED)
        say({"curvature": curvature(problem, problem.initial_weights(), seed=SEED)})
        scenario = Scenario.of(network, policy=settings.policy, paired=True)
        schedule = simulate(network, scenario, time=time, seed=SEED)
        replay = Replay(
            schedule,
            problem,
            settings.rule,
            learning_rate=settings.learning_rate,
            seed=SEED,
            evaluate_at=np.linspace(0.0, time, ROWS + 1),
        )
        position = replay.beginning(None)
        written = 0

        def tell(done: int, rounds: int) -> None:
            nonlocal written
            columns = position.rows.columns
            for k in range(written, len(columns["time"])):
                names = ("time", "round", "test_loss", "test_accuracy", "staleness")
                say({"row": {name: columns[name][k] for name in names}})
            written = len(columns["time"])
            say({"done": done, "rounds": rounds})

        tell(0, schedule.rounds)
        Stack([replay]).run([position], advance=tell)
    say({"end": "diverged" if position.diverged_at is not None else "finished"})


def _end_with(stream: io.RawIOBase) -> None:
    """Leave as soon as the input is closed: whoever started this is gone, or wants it to stop."""
    with contextlib.suppress(OSError):
        stream.read()
    os._exit(0)


def main() -> None:
    """Read the question, and answer it line by line."""
    # Without a buffer, whose lock a thread would still hold when Python ends.
    stream = io.FileIO(sys.stdin.fileno(), closefd=False)
    asked = json.loads(stream.readline())
    threading.Thread(target=_end_with, args=(stream,), daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(5)

    def say(values: Mapping[str, object]) -> None:
        sys.stdout.write(json.dumps(finite(values), allow_nan=False) + "\n")
        sys.stdout.flush()

    base = Network.from_table(asked["base"]).fleet
    try:
        run(Settings.from_table(asked["settings"], base), say)
    except SojournError as error:
        say({"end": "failed", "error": str(error)})


if __name__ == "__main__":
    main()
