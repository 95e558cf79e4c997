"""Cells really run, through the experiments of `sojourn.train`, on a tiny stand-in for the data."""

import dataclasses
from pathlib import Path

import pytest

from sojourn.bounds import LearningConstants
from sojourn.reproduce.cell_runs import CellRunner
from sojourn.reproduce.estimate import estimated_seconds, in_words
from sojourn.reproduce.settings import Settings, Size, TrainingCell
from sojourn.reproduce.training import Missing

STRATEGIES = ("uniform", "g-optimal", "plan")


@pytest.fixture
def runner(tmp_path: Path) -> CellRunner:
    """Digits in the place of the paper's data sets, forty rounds."""
    settings = Settings.read("quick")
    size = Size("linear", batch_size=16, seeds=2, evaluations=4, rounds=40, time=20.0)
    short = {
        name: dataclasses.replace(setting, strategies=STRATEGIES)
        for name, setting in settings.settings.items()
    }
    settings = dataclasses.replace(settings, settings=short, sizes={"digits": size})
    return CellRunner(settings, tmp_path / "cells", jobs=1)


def test_a_cell_against_rounds_is_run_once(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "dirichlet(0.5)", "rounds")
    histories = runner.run(cell)
    assert not isinstance(histories, Missing)
    assert sorted({(h.strategy, h.seed) for h in histories}) == sorted(
        (name, seed) for name in STRATEGIES for seed in (0, 1)
    )
    assert {int(h.round[-1]) for h in histories} == {40}
    assert {h.rows for h in histories} == {5}
    stamps = {path: path.stat().st_mtime_ns for path in runner.folder.rglob("cells/*.jsonl")}
    again = runner.run(cell)
    assert not isinstance(again, Missing)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert [h.test_loss.tolist() for h in again] == [h.test_loss.tolist() for h in histories]


def test_against_time_every_strategy_is_evaluated_often(runner: CellRunner) -> None:
    histories = runner.run(
        TrainingCell("digits", "homogeneous", "time", "lognormal"), ["h-optimal"]
    )
    assert not isinstance(histories, Missing)
    assert {h.strategy for h in histories} == {*STRATEGIES, "h-optimal"}
    for history in histories:
        assert history.rows >= 4
        assert history.time[-1] <= 20.0


def test_constants_are_measured_once(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds", "deterministic")
    measured = runner.measured(cell)
    assert isinstance(measured, LearningConstants)
    assert measured.initial_gap == pytest.approx(2.3, abs=0.5)
    assert runner.measured(TrainingCell("digits", "homogeneous", "rounds")) == measured
    assert len(list((runner.folder / "constants").iterdir())) == 1


def test_data_that_are_not_there_are_said(
    runner: CellRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    found = runner.run(TrainingCell("cifar-10", "homogeneous", "rounds"))
    assert isinstance(found, Missing)
    assert "cifar-10" in found.reason
    assert not runner.folder.exists()


def test_the_estimate_falls_to_nothing_when_all_is_done(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds")
    assert estimated_seconds(runner, [(cell, ())]) > 0
    runner.run(cell)
    assert estimated_seconds(runner, [(cell, ())]) == 0
    assert in_words(0.2) == "1 seconds"
