"""Seeds are added until a claim is told or its budget is spent; killed and resumed it is the same."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from reproduction import pool
from reproduction.cell_runs import CellRunner
from reproduction.claims import Claim
from reproduction.estimate import Prices
from reproduction.intervals import SequentialIntervals
from reproduction.run import Reproduction
from reproduction.sequential import Run, Trials
from reproduction.settings import Settings, Size, TrainingCell
from reproduction.training import Missing, TrainingClaim, judge, read_training
from reproduction.verdict import Finding
from sojourn._support.configuration import Table
from sojourn.runs.history import History

PRICES = {"digits": [0.01, 0.0, 0.0]}
"""A gradient costs a hundredth of a second, and nothing else anything."""
CELLS = [
    {"data": "digits", "partition": "homogeneous"},
    {"data": "digits", "partition": "dirichlet(0.5)"},
]
STATEMENTS = [
    {"says": "ahead", "measure": "final", "strategy": "balanced", "over": ["uniform"]},
    {"says": "steady", "measure": "steadier", "strategy": "g-optimal", "over": ["uniform"]},
]


def settings() -> Settings:
    size = Size(
        "linear",
        batch_size=16,
        looks=SequentialIntervals((3, 5)),
        evaluations=4,
        rounds=30,
        time=20.0,
    )
    read = Settings.read("quick")
    return dataclasses.replace(read, sizes={"digits": size}, full_sizes={"digits": size})


def claim(setting: str = "rounds", cells: object = None) -> TrainingClaim:
    given = {"setting": setting, "cell": cells or CELLS, "statement": STATEMENTS}
    return read_training(Table(given, "claim"))


def trials(folder: Path, budget: float = math.inf) -> Trials:
    runner = CellRunner(settings(), folder, jobs=1)
    return Trials(runner, Prices(runner, json.loads(json.dumps(PRICES))), budget)


class Invented:
    """Runs that cost nothing, in the place of training: balanced is ahead, the rest is noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waves: list[dict[Run, int]] = []
        monkeypatch.setattr("reproduction.sequential.make_runs", self.make)
        monkeypatch.setattr("reproduction.sequential.histories", self.histories)
        monkeypatch.setattr("reproduction.sequential.summarize_runs", lambda *_: None)

    def make(self, runner: CellRunner, wanted: dict[Run, int], **_: object) -> None:
        self.waves.append(dict(wanted))

    def histories(
        self, runner: CellRunner, cell: TrainingCell, made: dict[Run, int]
    ) -> list[History]:
        return [
            invented(strategy, seed)
            for (where, strategy), pairs in made.items()
            for seed in range(pairs)
            if where == cell
        ]


def made(work: Trials, asked: TrainingClaim, **options: object) -> dict:
    """What is there of a claim once its budget is spent."""
    work.spend([asked], **options)
    return work.results(asked)


def invented(strategy: str, seed: int) -> History:
    noise = 0.001 * ((7 * seed + len(strategy)) % 5)
    accuracy = (0.8 if strategy == "balanced" else 0.5) + noise
    columns = {
        name: [2.0 + noise, 1.0 + noise] for name in ("test_loss", "train_loss", "staleness")
    }
    return History(
        strategy=strategy,
        seed=seed,
        learning_rate=0.01,
        clock="virtual",
        round=[0, 30],
        time=[0.0, 30.0],
        test_accuracy=[accuracy, accuracy],
        gradients=[0, 30],
        updates=[0, 30],
        **columns,
    )


def test_only_open_statements_get_more_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Invented(monkeypatch)
    work = trials(tmp_path)
    results = made(work, claim())
    first, second = seen.waves
    assert set(first.values()) == {3}
    assert {name for _, name in first} == {"uniform", "balanced", "g-optimal"}
    assert set(second.values()) == {5}
    assert {name for _, name in second} == {"uniform", "g-optimal"}, "balanced is told"
    told = {s.says: s for s in judge(claim(), results, settings())}
    assert told["ahead."].compared[0].pairs == 3
    assert told["steady."].compared[0].pairs == 5


def test_what_cannot_be_paid_is_left_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Invented(monkeypatch)
    one_cell = 3 * 3 * 30 * 0.01
    work = trials(tmp_path, budget=1.5 * one_cell)
    results = made(work, claim())
    runs = sum(work.made.values())
    assert work.left == pytest.approx(1.5 * one_cell - runs * 30 * 0.01)
    assert 0 <= work.left < 3 * 2 * 30 * 0.01, "less than any statement costs"
    not_run = [s for s in judge(claim(), results, settings()) if "Not run" in s.found]
    assert not_run
    assert {s.outcome for s in not_run} == {"inconclusive"}
    assert not any(s.compared for s in not_run)


def test_cheap_statements_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Invented(monkeypatch)
    cells = [{**CELLS[0], "setting": "time"}, CELLS[0]]
    asked = claim(cells=cells)
    work = trials(tmp_path)
    prices = {}
    for comparison, cell in asked.statements:
        runs = dict.fromkeys(comparison.runs(cell, settings()), 3)
        prices[frozenset(runs)] = work.price(runs)
    cheapest = min(prices, key=prices.__getitem__)
    assert len(set(prices.values())) > 1
    work.left = prices[cheapest]
    work.spend([asked])
    assert set(seen.waves[0]) == cheapest
    assert work.left == 0.0


def test_runs_that_claims_share_are_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Invented(monkeypatch)
    alone, together = trials(tmp_path, budget=1000.0), trials(tmp_path, budget=1000.0)
    alone.spend([claim()])
    together.spend([claim(), claim()])
    assert together.left == alone.left < 1000.0
    assert together.made == alone.made


def test_a_wave_leaves_half_of_the_budget_for_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Invented(monkeypatch)
    first_looks = 2 * 3 * 3 * 30 * 0.01
    work = trials(tmp_path, budget=1.2 * first_looks)
    work.spend([claim()])
    spent = [30 * 0.01 * sum(wave.values()) for wave in seen.waves[:1]]
    assert spent[0] <= 0.6 * first_looks
    assert len(seen.waves) > 1


def test_killed_and_resumed_it_makes_the_same_runs_and_comes_to_the_same_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trials(tmp_path / "whole")
    expected = judge(claim(), made(whole, claim()), settings())

    class Killed(Exception):
        pass

    started = 0
    real = pool.LocalEngine.run_stacks

    def dies(self: pool.LocalEngine, work: list, advance: object) -> object:
        nonlocal started
        for done in real(self, work, advance):
            started += 1
            if started == 5:
                raise Killed
            yield done

    monkeypatch.setattr(pool.LocalEngine, "run_stacks", dies)
    with pytest.raises(Killed):
        trials(tmp_path / "killed").spend([claim()])
    monkeypatch.setattr(pool.LocalEngine, "run_stacks", real)
    again = trials(tmp_path / "killed")
    assert judge(claim(), made(again, claim()), settings()) == expected
    assert again.made == whole.made


def test_a_larger_budget_makes_further_runs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Invented(monkeypatch)
    small, large = 1.5 * 3 * 3 * 30 * 0.01, 1000.0
    first = trials(tmp_path, budget=small)
    first.spend([claim()])
    assert first.spent == pytest.approx(small - first.left)
    before, number = dict(first.made), len(seen.waves)
    again = trials(tmp_path, budget=large)
    again.go_on([claim()], json.loads(json.dumps(first.counts)), first.spent)
    assert again.made == before
    again.spend([claim()])
    assert seen.waves[number] == before, "looked for, and made only if they have gone missing"
    for wave in seen.waves[number + 1 :]:
        assert all(pairs > before.get(run, 0) for run, pairs in wave.items())
    whole = trials(tmp_path, budget=large)
    whole.spend([claim()])
    assert again.made == whole.made
    assert again.spent == pytest.approx(whole.spent)
    assert again.left == pytest.approx(large - again.spent)


def test_a_wave_that_is_over_is_kept_and_one_that_was_cut_short_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Invented(monkeypatch)
    budget = 1.2 * 2 * 3 * 3 * 30 * 0.01
    stands: list[tuple[dict[str, dict[str, int]], float]] = []
    whole = trials(tmp_path, budget=budget)
    whole.spend([claim()], keep=lambda: stands.append((whole.counts, whole.spent)))
    waves = list(seen.waves)
    assert len(stands) == len(waves) > 1
    for done, (counts, spent) in enumerate(stands, start=1):
        seen.waves.clear()
        again = trials(tmp_path, budget=budget)
        again.go_on([claim()], counts, spent)
        again.spend([claim()])
        assert seen.waves[1:] == waves[done:]
        assert again.made == whole.made


def test_without_data_the_cells_say_so_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Invented(monkeypatch)
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    monkeypatch.setattr("sojourn.training.data.sets.DEBIAN_ROOT", tmp_path)
    asked = claim(cells=[*CELLS, {"data": "kmnist", "partition": "homogeneous"}])
    work = trials(tmp_path / "cells")
    sizes = {**settings().sizes, "kmnist": settings().sizes["digits"]}
    work.runner = dataclasses.replace(
        work.runner, settings=dataclasses.replace(settings(), sizes=sizes, full_sizes=sizes)
    )
    said: list[str] = []
    results = made(work, asked, say=said.append)
    assert any("kmnist" in line for line in said)
    for statement in judge(asked, results, work.runner.settings):
        absent = statement.about.startswith("KMNIST")
        assert (statement.outcome == "data not found") == absent
    assert isinstance(results[asked.cells[2]], Missing)


def test_each_strategy_has_the_learning_rate_that_was_best_on_held_out_samples(
    tmp_path: Path,
) -> None:
    work = trials(tmp_path)
    cell = TrainingCell("digits", "homogeneous", "time-tuned")
    asked = read_training(
        Table(
            {
                "setting": "time-tuned",
                "cell": [{"data": "digits", "partition": "homogeneous"}],
                "statement": [{**STATEMENTS[0], "over": ["uniform"]}],
            },
            "claim",
        )
    )
    results = made(work, asked)[cell]
    assert not isinstance(results, Missing)
    tried = json.loads(work.runner.rates_path(cell).read_text())
    assert set(tried) == {h.strategy for h in results}
    for name, entry in tried.items():
        accuracies = {float(rate): value for rate, value in entry["validation accuracy"].items()}
        assert len(accuracies) >= 7, "the same effort for all"
        assert accuracies[entry["chosen"]] == max(accuracies.values())
        assert {h.learning_rate for h in results if h.strategy == name} == {entry["chosen"]}


def run_by_run(folder: Path) -> Reproduction:
    """A reproduction without a budget of its own, of invented runs with three seeds each."""
    given = {"setting": "time", "cell": CELLS, "statement": STATEMENTS}
    parameters = Table(given, "claim")
    asked = Claim("6", "title", "source", "training", "checked", {}, parameters)
    size = dataclasses.replace(settings().sizes["digits"], looks=SequentialIntervals((3,)))
    own = dataclasses.replace(settings(), budget=None, sizes={"digits": size})
    runner = CellRunner(own, folder / "cells", jobs=1)
    known = Prices(runner, json.loads(json.dumps(PRICES)))
    work = Trials(runner, known, math.inf)
    return Reproduction((asked,), own, runner, folder, math.inf, work)


def test_without_a_budget_runs_are_made_one_by_one_and_what_is_done_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Invented(monkeypatch)
    work = run_by_run(tmp_path)
    pairs: list[list[int]] = []

    def so_far() -> None:
        finding = Finding.read(tmp_path / "claim-6")
        pairs.append([sum(c.pairs for c in s.compared) for s in finding.statements])

    (finding,) = work.run(lambda line: None, None, so_far)
    assert all(len(wave) == 1 for wave in seen.waves)
    assert len(pairs) == len(seen.waves)
    assert sum(pairs[0]) == 0, "one run is no pair"
    assert pairs == sorted(pairs, key=sum) and [3, 3, 3, 3] in pairs
    assert {s.outcome for s in finding.statements if s.says == "ahead."} == {"reproduces"}
    prices = work.trials.prices
    dear = [prices.run(*run) * seed for wave in seen.waves[:9] for run, seed in wave.items()]
    assert dear == sorted(dear), "what is cheap first, later seeds counting as many times"


def test_an_interruption_of_a_scale_without_a_budget_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Invented(monkeypatch)
    whole = [
        s.found for f in run_by_run(tmp_path / "whole").run(lambda line: None) for s in f.statements
    ]
    waves, seen.waves = seen.waves, []

    def interrupt() -> None:
        if len(seen.waves) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_by_run(tmp_path / "cut").run(lambda line: None, None, interrupt))
    begun, seen.waves = seen.waves, []
    again = run_by_run(tmp_path / "cut").run(lambda line: None)
    assert [s.found for f in again for s in f.statements] == whole
    assert begun + seen.waves[1:] == waves, (
        "the first call of an old record makes sure that its runs are there"
    )
