"""Cells really run, through the experiments of `sojourn.train`, on a tiny stand-in for the data."""

import dataclasses
from pathlib import Path

import pytest

from sojourn.constants import LearningConstants
from sojourn.history import History
from sojourn.reproduce.cell_runs import CellRunner
from sojourn.reproduce.estimate import estimated_seconds, in_words
from sojourn.reproduce.pool import run_cells
from sojourn.reproduce.settings import Settings, Size, TrainingCell
from sojourn.reproduce.training import Missing
from sojourn.train.experiment.build import build_problem

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


def ran(runner: CellRunner, cell: TrainingCell, *also: str) -> list[History]:
    histories = run_cells(runner, [cell], also)[cell]
    assert not isinstance(histories, Missing)
    return histories


def test_a_cell_against_rounds_is_run_once(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "dirichlet(0.5)", "rounds")
    histories = ran(runner, cell)
    assert sorted({(h.strategy, h.seed) for h in histories}) == sorted(
        (name, seed) for name in STRATEGIES for seed in (0, 1)
    )
    assert {int(h.round[-1]) for h in histories} == {40}
    assert {h.rows for h in histories} == {5}
    stamps = {path: path.stat().st_mtime_ns for path in runner.folder.rglob("cells/*.jsonl")}
    again = ran(runner, cell)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert [h.test_loss.tolist() for h in again] == [h.test_loss.tolist() for h in histories]


def test_against_time_every_strategy_is_evaluated_often(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "time", "lognormal")
    histories = ran(runner, cell, "h-optimal")
    assert {h.strategy for h in histories} == {*STRATEGIES, "h-optimal"}
    for history in histories:
        assert 4 <= history.rows <= 8, "about as often as asked, though the start is quicker"
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
    cell = TrainingCell("cifar-10", "homogeneous", "rounds")
    found = run_cells(runner, [cell])[cell]
    assert isinstance(found, Missing)
    assert "cifar-10" in found.reason
    assert not runner.folder.exists()


def test_the_estimate_falls_to_nothing_when_all_is_done(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds")
    assert estimated_seconds(runner, [(cell, ())]) > 0
    ran(runner, cell)
    assert estimated_seconds(runner, [(cell, ())]) == 0
    assert in_words(0.2) == "1 seconds"


class Heard:
    """Adds up the progress that it is told of."""

    def __init__(self) -> None:
        self.total, self.done = 0.0, 0.0

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        self.total, self.done = total or 0.0, done

    def advance(self, amount: float) -> None:
        self.done += amount


def test_cells_share_one_pool_and_the_rest_goes_on_without_data(
    runner: CellRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    absent = TrainingCell("kmnist", "homogeneous", "time")
    cells = [
        TrainingCell("digits", "homogeneous", "rounds", "deterministic"),
        absent,
        TrainingCell("digits", "homogeneous", "rounds"),
    ]
    said: list[str] = []
    heard = Heard()
    found = run_cells(runner, cells, say=said.append, progress=heard)
    assert list(found) == cells
    assert isinstance(found[absent], Missing)
    kept = sorted(runner.folder.rglob("cells/*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    assert len(kept) == 2 * 2 * len(STRATEGIES)
    seeds = [History.read(path)[0].seed for path in kept]
    assert seeds == [0] * 6 + [1] * 6, "runs of one problem are neighbours"
    assert heard.done == pytest.approx(heard.total)
    assert heard.total == 12 * 40
    assert "kmnist" in said[0]
    assert [line.partition(": done after ")[0].strip() for line in said[1:]] == [
        "Digits, homogeneous, deterministic times",
        "Digits, homogeneous",
    ]


def test_several_processes_find_what_one_finds(runner: CellRunner, tmp_path: Path) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds")
    alone = ran(runner, cell)
    several = dataclasses.replace(runner, folder=tmp_path / "several", jobs=2)
    found, again = ran(several, cell), ran(several, cell)
    assert [h.test_loss.tolist() for h in found] == [h.test_loss.tolist() for h in alone]
    assert [h.test_loss.tolist() for h in again] == [h.test_loss.tolist() for h in found]


def test_a_process_keeps_the_problem_it_used_last(runner: CellRunner) -> None:
    first, other = (
        next(iter(runner.experiments(TrainingCell("digits", "homogeneous", "rounds", law))))[1]
        for law in ("exponential", "lognormal")
    )
    problem = build_problem(first, 0)
    assert build_problem(other, 0) is problem
    assert build_problem(first, 1) is not problem
