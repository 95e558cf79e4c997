"""The time to a target is that of the run, not of how often somebody looked."""

import dataclasses

import numpy as np
import pytest

import sojourn as sj
from sojourn.rules import AsyncSGD
from sojourn.runs.history import History
from sojourn.runs.measure import LOSS
from sojourn.training.replay.run import Replay

from .small import final_run, ran, small_problem, small_schedule
from .test_experiment import made

OPTIONS = {"learning_rate": 0.05, "seed": 1, "batched": False}


def exact(schedule, problem, **options):
    """Evaluated after every round."""
    return sj.replay(schedule, problem, AsyncSGD(), evaluate_every=1, **{**OPTIONS, **options})


@pytest.mark.parametrize("every", [10, 50, 150, 400])
def test_however_rarely_one_looks_the_time_to_a_target_is_known_to_the_resolution_said(every):
    schedule, problem = small_schedule(rounds=400), small_problem()
    truth = exact(schedule, problem)
    seen = sj.replay(schedule, problem, AsyncSGD(), evaluate_every=every, refine=True, **OPTIONS)
    for target in (0.5, 0.6, 0.7, 0.8):
        found = seen.time_to(target)
        assert truth.time_to(target) <= found
        # Between two rows a run may touch a target and fall back unseen.
        assert abs(found - truth.time_to(target)) < truth.time[-1] / 6
        assert seen.resolution(target) < truth.time[-1] / 8


def test_rows_between_are_what_they_would_be_had_they_been_asked_for():
    schedule, problem = small_schedule(rounds=200), small_problem()
    truth = exact(schedule, problem)
    seen = sj.replay(schedule, problem, AsyncSGD(), evaluate_every=100, refine=True, **OPTIONS)
    assert {0, 100, 200} < set(seen.round.tolist())
    assert np.all(np.diff(seen.round) > 0)
    for column in ("time", "test_loss", "test_accuracy", "gradients", "updates"):
        assert np.array_equal(getattr(seen, column), getattr(truth, column)[seen.round])
    tasks = np.diff(seen.round, prepend=0)
    assert tasks @ np.nan_to_num(seen.train_loss) == pytest.approx(
        np.nansum(truth.train_loss), rel=1e-9
    )
    assert tasks @ np.nan_to_num(seen.staleness) == pytest.approx(np.nansum(truth.staleness))


def test_where_nothing_leaps_there_are_no_rows_between():
    schedule, problem = small_schedule(rounds=200), small_problem()
    seen = sj.replay(
        schedule,
        problem,
        AsyncSGD(),
        evaluate_every=50,
        refine=True,
        **{**OPTIONS, "learning_rate": 1e-9},
    )
    assert seen.round.tolist() == [0, 50, 100, 150, 200]


def test_a_loss_is_looked_at_as_closely():
    problem = small_problem(primary="loss")
    schedule = small_schedule(rounds=400)
    truth = exact(schedule, problem)
    seen = sj.replay(schedule, problem, AsyncSGD(), evaluate_every=200, refine=True, **OPTIONS)
    assert seen.measure == LOSS
    target = float(truth.test_loss[60])
    assert seen.time_to(target) == pytest.approx(truth.time_to(target), abs=truth.time[30])


def test_a_run_that_was_killed_between_rows_goes_on_to_the_bit(tmp_path):
    schedule, problem = small_schedule(rounds=200), small_problem()
    options = {"evaluate_every": 100, "refine": True, **OPTIONS}
    whole = sj.replay(schedule, problem, AsyncSGD(), **options)
    from sojourn.training.replay.checkpoint import Checkpoint, CheckpointFile, digest

    run = Replay(
        schedule,
        problem,
        AsyncSGD(),
        learning_rate=0.05,
        seed=1,
        evaluate_every=100,
        refine=True,
    )
    identity = {**run.identity(), "batched": digest(False)}
    position = ran(run, file=CheckpointFile(Checkpoint(tmp_path / "c"), identity), until=57)
    assert position.between
    rest = sj.replay(schedule, problem, AsyncSGD(), checkpoint=tmp_path / "c", **options)
    for name, history in (("whole", whole), ("rest", rest)):
        History.write(tmp_path / name, [history])
    assert (tmp_path / "rest").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_run_stops_at_the_first_row_that_reaches_the_target():
    schedule, problem = small_schedule(rounds=400), small_problem()
    options = {"evaluate_every": 50, "refine": True, **OPTIONS}
    whole = sj.replay(schedule, problem, AsyncSGD(), **options)
    stopped = sj.replay(schedule, problem, AsyncSGD(), stop_at=0.7, **options)
    assert stopped.final >= 0.7
    assert stopped.time[-1] == whole.time_to(0.7)
    assert stopped.rows < whole.rows
    assert np.array_equal(stopped.round, whole.round[: stopped.rows])


def test_all_strategies_are_seen_at_the_same_times_up_to_the_horizon(tmp_path):
    experiment = dataclasses.replace(
        made(tmp_path, rounds=None, time=20.0, seeds=1, fleet="three-clusters"), refine=False
    )
    first, second = (final_run(experiment, i, 0, 0.05) for i in (0, 1))
    assert np.array_equal(first.time, second.time)
    assert first.time[-1] == 20.0
    assert 11 <= first.rows <= 101
    refined = final_run(dataclasses.replace(experiment, refine=True), 0, 0, 0.05)
    assert set(first.time) <= set(refined.time)
