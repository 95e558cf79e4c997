"""Cells really run, through the experiments of `sojourn.training`, on a tiny stand-in for the data."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from reproduction import estimate, pool
from reproduction.cell_runs import CellRunner
from reproduction.estimate import Prices, in_words
from reproduction.intervals import SequentialIntervals
from reproduction.measures import SLOWEST_LABEL
from reproduction.pool import histories, make_runs
from reproduction.settings import Settings, Size, TrainingCell
from reproduction.training import exponential
from sojourn._support.arrays import read_tensors
from sojourn.errors import InvalidFile
from sojourn.rules.weighting import task_ordinals
from sojourn.runs.history import History
from sojourn.theory.constants import LearningConstants
from sojourn.training.data.sets import load_dataset
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.jobs import schedule_of

STRATEGIES = ("uniform", "g-optimal", "plan")


@pytest.fixture
def runner(tmp_path: Path) -> CellRunner:
    """Digits in the place of the paper's data sets, forty rounds."""
    settings = Settings.read("quick")
    size = Size(
        "linear",
        batch_size=16,
        looks=SequentialIntervals((2,)),
        evaluations=4,
        rounds=40,
        time=20.0,
    )
    settings = dataclasses.replace(settings, sizes={"digits": size})
    return CellRunner(settings, tmp_path / "cells", jobs=1)


def ran(runner: CellRunner, cell: TrainingCell, *strategies: str) -> list[History]:
    wanted = {(cell, name): 2 for name in strategies or STRATEGIES}
    make_runs(runner, wanted)
    return histories(runner, cell, wanted)


def test_a_cell_against_rounds_is_run_once(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "dirichlet(0.5)", "rounds")
    found = ran(runner, cell)
    assert sorted({(h.strategy, h.seed) for h in found}) == sorted(
        (name, seed) for name in STRATEGIES for seed in (0, 1)
    )
    assert {int(h.round[-1]) for h in found} == {40}
    assert {h.rows for h in found} == {5}
    stamps = {path: path.stat().st_mtime_ns for path in runner.folder.rglob("cells/*.jsonl")}
    again = ran(runner, cell)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert [h.test_loss.tolist() for h in again] == [h.test_loss.tolist() for h in found]


def test_a_stack_that_a_kill_left_half_saved_is_made_again_as_a_whole(
    runner: CellRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone or with others a run is rounded differently, so that its bits would depend on the kill."""
    cell = TrainingCell("digits", "dirichlet(0.5)", "rounds")
    wanted, before = {(cell, name): 2 for name in STRATEGIES}, {(cell, "uniform"): 1}
    make_runs(runner, before, made={})
    made: list[int] = []
    real = pool.LocalEngine.run_stacks

    def noted(self: pool.LocalEngine, work: list, advance: object) -> object:
        made.extend(len(stack) for stack in work)
        return real(self, work, advance)

    monkeypatch.setattr(pool.LocalEngine, "run_stacks", noted)
    make_runs(runner, wanted, made=before)
    whole = {path: path.read_bytes() for path in runner.folder.rglob("cells/*.jsonl")}
    for path in sorted(whole)[2:4]:
        path.unlink()
    make_runs(runner, wanted, made=before)
    assert {path: path.read_bytes() for path in whole} == whole
    make_runs(runner, wanted, made=before)
    assert made == [5, 5], "what was wanted before is not made again, nor what is all there"


def test_seeds_are_added_to_those_that_are_there(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds")
    first = ran(runner, cell, "uniform")
    make_runs(runner, {(cell, "uniform"): 3})
    more = histories(runner, cell, {(cell, "uniform"): 3})
    assert [h.seed for h in more] == [0, 1, 2]
    assert [h.test_loss.tolist() for h in more[:2]] == [h.test_loss.tolist() for h in first]


def test_against_time_every_strategy_is_evaluated_often(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "time", "lognormal")
    for history in ran(runner, cell, "balanced", "h-optimal", "never-queue"):
        assert 4 <= history.rows <= 8, "about as often as asked, though the start is quicker"
        assert history.time[-1] <= 20.0


@pytest.mark.parametrize("law", ["exponential", "lognormal"])
@pytest.mark.parametrize(
    ("setting", "pair"),
    [("rounds", ("uniform", "g-optimal")), ("time", ("balanced", "h-printed"))],
)
def test_pairs_share_data_weights_batches_and_service_times(
    runner: CellRunner, setting: str, pair: tuple[str, str], law: str
) -> None:
    cell = TrainingCell("digits", "dirichlet(0.5)", setting, law)
    experiments = [runner.experiment(cell, name, 2) for name in pair]
    problems = [build_problem(one, 1) for one in experiments]
    assert problems[0] is problems[1], "partition, first weights and batches"
    taken = []
    for one in experiments:
        schedule = schedule_of(one, one.strategies[0], 1, rounds=one.rounds, time=one.time)
        client = np.asarray(schedule.client)
        lasted = served(client, np.asarray(schedule.time), np.asarray(schedule.dispatched))
        taken.append(
            dict(zip(zip(client, task_ordinals(client), strict=True), lasted, strict=True))
        )
    shared = {*taken[0]} & {*taken[1]}
    assert len(shared) >= 5
    for task in shared:
        assert taken[0][task] == pytest.approx(taken[1][task], rel=1e-9)


def served(client: np.ndarray, time: np.ndarray, dispatched: np.ndarray) -> np.ndarray:
    """How long each completed task was served: since it came, or since its client was free."""
    sent = np.concatenate([[0.0], time])[dispatched]
    free = np.zeros(int(client.max()) + 1)
    lasted = np.empty(time.size)
    for t, i in enumerate(client):
        lasted[t] = time[t] - max(sent[t], free[i])
        free[i] = time[t]
    return lasted


def test_constants_are_measured_once(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds", "deterministic")
    measured = runner.measured(cell)
    assert isinstance(measured, LearningConstants)
    assert measured.initial_gap == pytest.approx(2.3, abs=0.5)
    assert runner.measured(TrainingCell("digits", "homogeneous", "rounds")) == measured
    assert len(list((runner.folder / "constants").iterdir())) == 1


@pytest.mark.slow
def test_what_is_compiled_with_the_first_gradients_is_not_in_their_price(
    runner: CellRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a new machine it takes seconds, and a data set so dear would be left out."""
    real, compiled = estimate.Stack.run, False

    def run(self: estimate.Stack, *given: object, **more: object) -> object:
        nonlocal compiled
        until = time.process_time() + 2.0 * estimate.SECONDS_OF_TRIAL
        while not compiled and time.process_time() < until:
            pass
        compiled = True
        return real(self, *given, **more)

    monkeypatch.setattr(estimate.Stack, "run", run)
    found = estimate.timed(runner, "digits")
    share = 2.0 * estimate.SECONDS_OF_TRIAL / (estimate.MOST_ROUNDS * estimate.RUNS_OF_TRIAL)
    assert compiled
    assert 0.0 < found.gradient < 10.0 * share, "some 0.1 ms, not a share of those seconds"


def test_prices_are_timed_once(runner: CellRunner) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds")
    prices = Prices(runner, {})
    price = prices.run(cell, "uniform")
    assert price > 0
    assert Prices(runner, prices.known).run(cell, "uniform") == price
    gradient, evaluation, _ = prices.known["digits"]
    assert price == pytest.approx(40 * gradient + 4 * evaluation)
    assert in_words(0.2) == "1 seconds"


class Heard:
    """Adds up the progress that it is told of."""

    def __init__(self) -> None:
        self.total, self.done = 0.0, 0.0

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        self.total, self.done = total or 0.0, done

    def advance(self, amount: float) -> None:
        self.done += amount


def test_cells_share_one_pool(runner: CellRunner) -> None:
    cells = [
        TrainingCell("digits", "homogeneous", "rounds", "deterministic"),
        TrainingCell("digits", "homogeneous", "rounds"),
    ]
    said: list[str] = []
    heard = Heard()
    wanted = {(cell, name): 2 for cell in cells for name in STRATEGIES}
    make_runs(runner, wanted, say=said.append, progress=heard)
    kept = sorted(runner.folder.rglob("cells/*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    assert len(kept) == 2 * 2 * len(STRATEGIES)
    seeds = [History.read(path)[0].seed for path in kept]
    assert seeds == [0] * 6 + [1] * 6, "runs of one problem are neighbours"
    assert heard.done == pytest.approx(heard.total)
    assert heard.total == 12 * 40
    assert [line.partition(": done after ")[0].strip() for line in said] == [
        "Digits, homogeneous, deterministic times",
        "Digits, homogeneous",
    ]


@pytest.mark.processes
def test_several_processes_find_what_one_finds(runner: CellRunner, tmp_path: Path) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds")
    alone = ran(runner, cell)
    several = dataclasses.replace(runner, folder=tmp_path / "several", jobs=2)
    found, again = ran(several, cell), ran(several, cell)
    assert [h.test_loss.tolist() for h in found] == [h.test_loss.tolist() for h in alone]
    assert [h.test_loss.tolist() for h in again] == [h.test_loss.tolist() for h in found]


@pytest.mark.parametrize("most, whole", [(pool.MOST_ABREAST, [[0, 1]]), (4, [[0], [1]])])
def test_runs_of_one_problem_and_a_few_seeds_are_made_together(
    most: int, whole: list[list[int]], runner: CellRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many seeds as find room; the runs of one seed are never torn apart."""
    bundles: list[list[tuple[str, int]]] = []
    real = pool.LocalEngine.run_stacks

    def noted(self: pool.LocalEngine, work: list, advance: object) -> object:
        bundles.extend([(one[0].strategies[0].name, one[1].seed) for one in b] for b in work)
        return real(self, work, advance)

    monkeypatch.setattr(pool.LocalEngine, "run_stacks", noted)
    monkeypatch.setattr(pool, "MOST_ABREAST", most)
    cells = [
        TrainingCell("digits", "homogeneous", "rounds", law)
        for law in ("exponential", "deterministic")
    ]
    make_runs(runner, {(cell, name): 2 for cell in cells for name in ("uniform", "balanced")})
    names = ("uniform", "balanced")
    expected = [[(name, seed) for seed in seeds for name in names] * 2 for seeds in whole]
    assert [sorted(bundle) for bundle in bundles] == [sorted(bundle) for bundle in expected]
    bundles.clear()
    make_runs(runner, {(cells[0], "uniform"): 3, (cells[0], "balanced"): 2})
    assert bundles == [[("uniform", 2)]], "what is there is not made again"


def test_images_are_averaged_down_where_the_size_says_so(runner: CellRunner) -> None:
    size = dataclasses.replace(runner.settings.sizes["digits"], pixels=4)
    settings = dataclasses.replace(runner.settings, sizes={"digits": size})
    small = dataclasses.replace(runner, settings=settings)
    cell = TrainingCell("digits", "homogeneous", "rounds")
    experiment = small.experiment(cell, "uniform", 1)
    assert experiment.data == "digits(4)"
    assert build_problem(experiment, 0).test_set[0].shape[1:] == (1, 4, 4)
    assert len(ran(small, cell, "uniform")) == 2


def test_a_process_keeps_the_problem_it_used_last(runner: CellRunner) -> None:
    first, other = (
        runner.experiment(TrainingCell("digits", "homogeneous", "rounds", law), "uniform", 2)
        for law in ("exponential", "lognormal")
    )
    problem = build_problem(first, 0)
    assert build_problem(other, 0) is problem
    assert build_problem(first, 1) is not problem


KEPT = '{"initial_gap": 2.3, "smoothness": 10.0, "gradient_noise": 1.0, "heterogeneity": %s}'


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "not valid JSON"),
        ("[]", "must be a table"),
        (KEPT % '"x"', "heterogeneity must be a number"),
        (KEPT % "-1.0", "heterogeneity must be zero or positive"),
        (KEPT % "NaN", "heterogeneity must be a number"),
        ("{}", "initial_gap is missing"),
    ],
)
def test_kept_constants_that_are_none_are_told(runner: CellRunner, text: str, said: str) -> None:
    cell = TrainingCell("digits", "homogeneous", "rounds")
    path = runner.folder / "constants" / f"{exponential(cell).name}.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InvalidFile, match=said) as refused:
        runner.measured(cell)
    assert "Remove the file" in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[1]", '{"uniform": 1}', '{"uniform": {"chosen": -1}}'])
def test_kept_learning_rates_that_are_none_are_told(runner: CellRunner, text: str) -> None:
    path = runner.rates_path(TrainingCell("digits", "homogeneous", "rounds"))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InvalidFile, match="Remove the file"):
        runner.rates(TrainingCell("digits", "homogeneous", "rounds"))


def test_the_lead_of_the_slowest_clients_label_is_that_of_the_final_weights(
    runner: CellRunner,
) -> None:
    cell = TrainingCell("digits", "disjoint", "disjoint")
    found = ran(runner, cell, "uniform")
    for history in found:
        lead = history.metrics[SLOWEST_LABEL]
        assert np.isnan(lead[:-1]).all()
        folder, experiment, jobs = runner.runs(cell, "uniform", 2)
        arrays = read_tensors(jobs[history.seed].weights_path(experiment, folder))
        weight, bias = (next(v for v in arrays.values() if v.ndim == k) for k in (2, 1))
        images, labels = (part.numpy() for part in load_dataset("digits", None).test)
        right = (images.reshape(len(images), -1) @ weight.T + bias).argmax(axis=1) == labels
        assert right.mean() == pytest.approx(history.final_accuracy, abs=1e-12)
        others = np.mean([right[labels == label].mean() for label in range(1, 10)])
        assert lead[-1] == pytest.approx(right[labels == 0].mean() - others, abs=1e-12)
