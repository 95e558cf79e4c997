"""Budgets: every stage of tuning ends at its deadline, and what was run until then is an answer."""

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import pytest

from sojourn._support.progress import Silent
from sojourn.errors import InvalidInput
from sojourn.runs.measure import ACCURACY
from sojourn.training.experiment.engines import LocalEngine
from sojourn.tuning import confirmation, robustness, runner, tune as tuning
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.pilots import Pilot, advance, advance_until
from sojourn.tuning.setting import Setting, read_setting
from sojourn.tuning.successive_halving import Candidate, Halving, Rung

EXPERIMENT = """
fleet = "fleet.csv"
data = "digits"
model = "linear"
time = 8
learning-rate = [0.05, 0.2]
[[strategy]]
name = "busy"
rule = "async-sgd"
policy = "never-queue"
[[strategy]]
name = "routed"
routing = "uniform"
"""
FINALISTS = [Candidate(0, 0.05), Candidate(1, 0.05)]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("deadlines")
    (folder / "fleet.csv").write_text("service_rate,count\n0.5,3\n2,3\n")
    (folder / "own.toml").write_text(EXPERIMENT)
    return read_setting(folder / "own.toml")


def test_when_the_time_is_out_only_what_an_answer_needs_is_run(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the budget is gone: one strategy to the first rung, one confirming run, no conditions."""
    for check in ("fitted", "check_time_left"):
        monkeypatch.setattr(tuning, check, lambda setting, *given: (setting, "all of them"))
    late = time.monotonic() - 100.0
    found = tuning.tune_setting(setting, tmp_path, budget=50.0, begun=late)
    (rung,) = found.halving.rungs
    assert {candidate.strategy for candidate in rung.runs} == {0}
    assert found.halving.stopped
    assert [len(row.scores) for row in found.table] == [1]
    assert found.robustness is not None and not found.robustness.conditions
    assert "No time was left to try it under other laws, speeds or absences." in found.sentence
    assert "The budget ended the pilot runs at 0.125 of the horizon" in found.sentence
    assert (tmp_path / "strategy.toml").exists()


@pytest.mark.parametrize(
    ("fraction", "where"), [(0.25, "at 0.25 of the horizon"), (1.0, "in their last rung")]
)
def test_the_answer_says_where_the_budget_ended_the_pilot_runs(fraction: float, where: str) -> None:
    halving = Halving([Rung(fraction)], {}, stopped=True)
    assert f"ended the pilot runs {where}, and one fresh seed" in tuning._note(halving, 1)


def test_a_budget_that_is_gone_before_anything_is_run_is_refused(
    setting: Setting, tmp_path: Path
) -> None:
    late = time.monotonic() - 100.0
    with pytest.raises(InvalidInput, match="to load the libraries and the problem took"):
        tuning.tune_setting(setting, tmp_path / "none", budget=50.0, begun=late)
    assert not (tmp_path / "none").exists()


def test_a_job_is_given_up_at_its_deadline(setting: Setting) -> None:
    pilot = Pilot(setting.experiment, Criterion(), (FINALISTS[0],), 7, 1.0)
    assert advance_until(time.time() - 1.0, pilot, [None]) is None
    done = advance_until(math.inf, pilot, [None])
    assert done is not None and done.whole_runs == 1.0


def test_pilot_runs_end_at_their_target_and_are_run_no_further(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their scores are those of whole runs, also if the race is taken up from its file."""
    by_time = dataclasses.replace(setting, criterion=Criterion("target", 0.5, ACCURACY))
    whole = advance(
        Pilot(
            setting.experiment,
            Criterion("area"),
            tuple(setting.candidates[:2]),
            setting.pilot_seed,
            1.0,
        ),
        [None, None],
    )
    jobs: list[Pilot] = []

    def noted(deadline, pilot, positions):
        jobs.append(pilot)
        return advance_until(deadline, pilot, positions)

    monkeypatch.setattr(runner, "advance_until", noted)
    own = runner.HalvingRunner(by_time, tmp_path, LocalEngine(), Silent())
    halving = own.run()
    saved = runner.HalvingRunner(by_time, tmp_path, LocalEngine(), Silent())
    assert saved.run().podium() == halving.podium() and saved._reached == own._reached
    first = halving.rungs[0].runs
    for candidate, history in zip(setting.candidates, whole.histories, strict=False):
        reached = by_time.criterion.score(history, 8.0)
        if candidate in halving.rungs[-1].runs and reached < 8.0:
            assert halving.rungs[-1].runs[candidate][0] == reached
    soon = {c for c, (score, *_) in first.items() if score < 1.0}
    assert soon, "some reach it in an eighth of the horizon"
    later = [
        c for p in jobs for c in p.candidates if p.fraction > 0.125 and p.seed == by_time.pilot_seed
    ]
    assert not soon & {*later}
    assert not halving.rungs[-1].undecided & {c.strategy for c in soon}


def test_no_job_is_begun_that_would_not_be_finished(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that took an hour for an eighth of the horizon are not run on to a quarter in ten minutes."""

    def slowly(*work):
        done = advance_until(*work)
        return done if done is None else dataclasses.replace(done, seconds=3600.0)

    monkeypatch.setattr(runner, "advance_until", slowly)
    own = runner.HalvingRunner(setting, tmp_path, LocalEngine(), Silent())
    own.deadline = time.monotonic() + 600.0
    halving = own.run()
    assert halving.stopped and [rung.fraction for rung in halving.rungs] == [0.125]
    assert {c.strategy for c in halving.rungs[0].runs} == {0, 1}


@pytest.mark.parametrize(("minutes", "seeds"), [(0.0, [1]), (4.5, [1, 1]), (10.0, [2, 2])])
def test_no_confirming_run_is_begun_that_would_not_be_finished(
    setting: Setting,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    minutes: float,
    seeds: list[int],
) -> None:
    """Runs take a minute. A further finalist, or a further seed of all, is run if there is time."""
    clock = iter(np.arange(0.0, 1e5, 60.0).tolist())  # a minute later at every look
    monkeypatch.setattr(confirmation, "monotonic", lambda: next(clock))
    made = confirmation.Confirmation(
        setting, tmp_path, LocalEngine(), Silent(), deadline=60.0 * minutes
    )
    table, _ = made.run(FINALISTS)
    assert [len(row.scores) for row in table] == seeds
    assert made.seconds == 60.0


def test_no_condition_is_begun_that_would_not_be_finished(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition takes two minutes by this clock: of six, two are done in five."""
    clock = iter(np.arange(0.0, 1e5, 60.0).tolist())
    monkeypatch.setattr(robustness, "monotonic", lambda: next(clock))
    monkeypatch.setattr(robustness, "_scores", lambda *given: dict.fromkeys(FINALISTS, (1.0, 1.0)))
    found = robustness.examine(setting, FINALISTS, LocalEngine(), 8.0, deadline=240.0)
    assert [condition.name for condition in found.conditions] == [
        "conditions are as assumed",
        "service times are deterministic",
    ]
    assert len(found.left_out) == 4
    assert "No time was left to try if service times are log-normal" in found.sentence(FINALISTS[0])
