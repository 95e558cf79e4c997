"""Training claims: judged from histories, seed by seed; wrong results change the verdict."""

from collections.abc import Mapping

import numpy as np
import pytest

from sojourn.config import Table
from sojourn.history import History
from sojourn.reproduce.checks import greater, less_variance
from sojourn.reproduce.claims import read_claims
from sojourn.reproduce.measures import (
    accuracy_throughout,
    by_strategy,
    final_accuracy,
    judge_alike,
    judge_steadier,
)
from sojourn.reproduce.settings import Settings, TrainingCell
from sojourn.reproduce.strategies import routing_of
from sojourn.reproduce.training import (
    Missing,
    TrainingClaim,
    exponential,
    figures,
    judge,
    read_training,
    tables,
)
from sojourn.reproduce.verdict import Finding, Statement

SETTINGS = Settings.read("quick")
FULL = Settings.read("paper")


def run(strategy: str, seed: int, final: float, *, wobble: float = 0.0) -> History:
    """A run that climbs to ``final``, with a loss that differs between seeds by ``wobble``."""
    rounds = np.arange(0, 1001, 100)
    accuracy = np.minimum(final, 0.1 + (final - 0.1) * rounds / 800)
    loss = 2.0 - accuracy + wobble * (seed + 1)
    return History(
        strategy=strategy,
        seed=seed,
        learning_rate=0.01,
        clock="virtual",
        round=rounds,
        time=rounds / 2.0,
        test_loss=loss,
        test_accuracy=accuracy + 0.002 * seed,
        train_loss=loss,
        staleness=np.full(11, 99.0),
        gradients=rounds,
        updates=rounds,
    )


def runs(finals: Mapping[str, float], wobbles: Mapping[str, float] | None = None) -> list[History]:
    wobbles = wobbles or {}
    return [
        run(
            name, seed, final + 0.001 * ((seed * 7 + len(name)) % 3), wobble=wobbles.get(name, 0.01)
        )
        for name, final in finals.items()
        for seed in range(3)
    ]


def training_claim(number: str, scale: str = "quick") -> TrainingClaim:
    parameters = read_claims([number])[0].parameters
    return read_training(Table({**parameters.values}, parameters.where), scale)


def verdict(statements: tuple[Statement, ...]) -> str:
    return Finding("3", "t", "s", "c", "quick", statements).verdict


GOOD = {"uniform": 0.75, "balanced": 0.76, "g-optimal": 0.82, "square-root": 0.75, "plan": 0.8}
STEADY = {"uniform": 0.4, "balanced": 0.4, "g-optimal": 0.05}


def test_claim_3_reproduces_from_good_results_and_not_from_wrong_ones() -> None:
    claim = training_claim("3")
    good = {cell: runs(GOOD, STEADY) for cell in claim.needed}
    wrong = {cell: runs({**GOOD, "g-optimal": 0.70}, {"g-optimal": 0.9}) for cell in claim.needed}
    assert verdict(judge(claim, good, SETTINGS)) == "reproduces, as far as told"
    assert verdict(judge(claim, good, FULL)) == "reproduces"
    assert verdict(judge(claim, wrong, SETTINGS)) == "does not reproduce, as far as told"
    assert verdict(judge(claim, wrong, FULL)) == "does not reproduce"


@pytest.mark.parametrize("final", [0.70, 0.82])
def test_runs_much_shorter_than_the_papers_tell_nothing(final: float) -> None:
    claim = training_claim("3")
    results = {cell: runs({**GOOD, "g-optimal": final}, STEADY) for cell in claim.needed}
    short = [s for s in judge(claim, results, SETTINGS) if "CIFAR" in s.about]
    assert {s.outcome for s in short} == {"cannot be told here"}
    assert all("too early to tell" in s.found for s in short)
    assert "cannot be told here" not in {s.outcome for s in judge(claim, results, FULL)}


def test_missing_data_is_said_and_the_rest_goes_on() -> None:
    claim = training_claim("3")
    results = {
        cell: Missing("cifar-10 is not here") if cell.data == "cifar-10" else runs(GOOD, STEADY)
        for cell in claim.needed
    }
    statements = judge(claim, results, FULL)
    for statement in statements:
        absent = "CIFAR-10," in statement.about
        assert statement.outcome == ("data not found" if absent else "reproduces")
    assert verdict(statements) == "reproduces, as far as told"
    assert len(figures("3", claim.cells, results, SETTINGS)) == 4
    assert len(tables(claim.cells, results, SETTINGS)) == 4
    nothing = {cell: Missing("not here") for cell in claim.needed}
    assert verdict(judge(claim, nothing, SETTINGS)) == "data not found"


def test_noise_cannot_be_told() -> None:
    assert greater([0.02, -0.01, 0.01]) == "cannot be told here"
    assert greater([0.05]) == "cannot be told here"
    assert greater([0.05, 0.051, 0.049]) == "reproduces"


def scattered(strategy: str, finals: list[float]) -> list[History]:
    """One run per final accuracy, seeds from 0."""
    return [run(strategy, seed, final - 0.002 * seed) for seed, final in enumerate(finals)]


def test_equal_means_of_scattered_runs_are_not_alike() -> None:
    steady, noisy = scattered("a", [0.5, 0.5, 0.5]), scattered("b", [0.9, 0.1, 0.5])
    assert judge_alike({"b - a": (noisy, steady)}).outcome == "cannot be told here"
    near, far = scattered("c", [0.51, 0.52, 0.51]), scattered("d", [0.61, 0.62, 0.61])
    told = judge_alike({"c - a": (near, steady)})
    assert told.outcome == "reproduces"
    assert told.found == "Differences in points: c - a +1.3 ± 1.0."
    assert judge_alike({"d - a": (far, steady)}).outcome == "does not reproduce"
    assert judge_alike({"c - a": (near[:1], steady[:1])}).outcome == "cannot be told here"


def test_insensitivity_is_not_claimed_of_scattered_runs() -> None:
    claim = training_claim("8")
    every = {**GOOD, "h-printed": 0.85, "h-optimal": 0.8}
    results = {cell: runs(every, STEADY) for cell in claim.needed}
    for cell in claim.cells:
        results[cell] = [
            h
            for name, final in every.items()
            for h in scattered(name, [final + 0.1, final - 0.1, final])
        ]
    told = [s for s in judge(claim, results, SETTINGS) if "insensitive" in s.says]
    assert {s.outcome for s in told} == {"cannot be told here"}


@pytest.mark.parametrize(
    ("own", "outcome"),
    [(0.01, "reproduces"), (0.05, "cannot be told here"), (0.4, "does not reproduce")],
)
def test_steadier_needs_more_than_a_chance_ratio_of_deviations(own: float, outcome: str) -> None:
    grouped = by_strategy(runs({"a": 0.5, "b": 0.5}, {"a": own, "b": 0.08}))
    assert judge_steadier(grouped, "a", ["b"], "rounds").outcome == outcome


def test_strategies_that_do_not_differ_seldom_seem_steadier() -> None:
    rng = np.random.default_rng(7)
    told = [
        less_variance(*rng.standard_normal((2, 3)).var(axis=1, ddof=1), runs=3) for _ in range(4000)
    ]
    for outcome in ("reproduces", "does not reproduce"):
        assert told.count(outcome) / 4000 == pytest.approx(0.05, abs=0.012)


def test_steadiness_of_runs_that_diverged_cannot_be_told() -> None:
    grouped = by_strategy(runs({"a": 0.5, "b": 0.5}, {"a": 0.4, "b": 0.01}))
    grouped["a"][0] = History(**{**vars(grouped["a"][0]), "diverged_at": 500})
    judged = judge_steadier(grouped, "a", ["b"], "rounds")
    assert judged.outcome == "cannot be told here"
    assert "a diverged" in judged.found


def test_a_run_that_diverged_counts_as_nothing_learnt() -> None:
    claim = training_claim("6")
    finals = {"uniform": 0.5, "balanced": 0.9, "g-optimal": 0.5, "h-printed": 0.7}
    finals |= {"square-root": 0.7, "plan": 0.7, "h-optimal": 0.6}
    histories = [
        History(**{**vars(h), "diverged_at": 500}) if h.strategy == "balanced" else h
        for h in runs(finals)
    ]
    statements = judge(claim, dict.fromkeys(claim.needed, histories), SETTINGS)
    found = {(s.about, s.says): s.outcome for s in statements}
    says = "Balanced routing is slightly better than p*H on homogeneous data."
    assert found["KMNIST, homogeneous", says] == "does not reproduce"


def test_claim_8_compares_with_the_exponential_law() -> None:
    claim = training_claim("8")
    assert all(cell.law in ("deterministic", "lognormal") for cell in claim.cells)
    assert {exponential(cell) for cell in claim.cells} <= set(claim.needed)
    every = {**GOOD, "h-printed": 0.85, "h-optimal": 0.8}
    results = {cell: runs(every, STEADY) for cell in claim.needed}
    told = [s for s in judge(claim, results, SETTINGS) if "insensitive" in s.says]
    assert {s.outcome for s in told} == {"reproduces", "cannot be told here"}
    assert all("Not run" in s.found for s in told if s.outcome == "cannot be told here")
    for cell in claim.cells:
        results[cell] = runs({name: final - 0.2 for name, final in every.items()}, STEADY)
    told = [s for s in judge(claim, results, SETTINGS) if "insensitive" in s.says]
    assert "does not reproduce" in {s.outcome for s in told}
    assert "reproduces" not in {s.outcome for s in told}


@pytest.mark.parametrize("scale", ["quick", "paper"])
@pytest.mark.parametrize("number", ["3", "6", "7", "8", "9"])
def test_every_cell_has_a_size_a_setting_and_a_name_of_its_own(number: str, scale: str) -> None:
    settings, claim = Settings.read(scale), training_claim(number, scale)
    assert len({cell.name for cell in claim.needed}) == len(claim.needed)
    for cell in claim.needed:
        size, setting = settings.sizes[cell.data], settings.settings[cell.setting]
        assert (size.time if setting.axis == "time" else size.rounds) is not None
        for comparison in claim.comparisons:
            if comparison.concerns(cell) and comparison.measure != "insensitive":
                assert {comparison.strategy, *comparison.over} <= {*setting.strategies, *claim.also}


def test_routings_sum_to_one_over_the_clients_and_are_in_order_of_speed() -> None:
    size = SETTINGS.sizes["kmnist"]
    setting = SETTINGS.settings["time"]
    for name in ("uniform", "balanced", "square-root", "g-optimal", "h-optimal", "h-printed"):
        routing = routing_of(name, setting, size, SETTINGS.constants, None)
        assert routing.size == 30
        assert routing.sum() == pytest.approx(1.0, abs=1e-12)
    best = routing_of("h-optimal", setting, size, SETTINGS.constants, None)
    assert best[:10].max() < best[10:20].min() < best[20:].max()


def test_paper_scale_is_the_papers_own_size() -> None:
    sizes = Settings.read("paper").sizes
    assert {size.batch_size for size in sizes.values()} == {512}
    assert {size.model for size in sizes.values()} == {"cnn"}
    assert (sizes["fashion-mnist"].rounds, sizes["fashion-mnist"].seeds) == (3000, 10)
    assert (sizes["kmnist"].time, sizes["cifar-10"].rounds) == (3000.0, 30000)
    assert Settings.read("paper").reduced == ""
    assert Settings.read("quick").reduced


@pytest.mark.parametrize(
    ("number", "axis", "other"), [("3", "rounds", "time"), ("6", "time", "rounds")]
)
def test_tables_average_along_the_axis_that_is_judged(number: str, axis: str, other: str) -> None:
    claim = training_claim(number)
    late = [
        History(**{**vars(h), "time": h.time**3, "provenance": {}})
        for h in runs({**GOOD, "h-printed": 0.7, "h-optimal": 0.6})
    ]
    table = tables(claim.cells, dict.fromkeys(claim.needed, late), SETTINGS)[0]
    assert f"mean over {axis}, %" in table.columns
    assert f"mean over {other}, %" not in table.columns
    row = dict(zip(table.columns, table.rows[2], strict=True))
    own = by_strategy(late)["g-optimal"]
    throughout = np.mean([accuracy_throughout(run, axis) for run in own])
    assert row[f"mean over {axis}, %"].startswith(f"{100 * throughout:.1f} ")
    assert throughout != pytest.approx(
        np.mean([accuracy_throughout(r, other) for r in own]), abs=0.05
    )
    final = np.mean([final_accuracy(run) for run in own])
    assert row["accuracy over the last tenth, %"].startswith(f"{100 * final:.1f} ")


def test_the_plan_is_named_for_what_is_used_of_it() -> None:
    claim = training_claim("3")
    results = {cell: runs(GOOD, STEADY) for cell in claim.needed}
    drawn = figures("3", claim.cells, results, SETTINGS)[0]
    assert "plan's routing (ours)" in {series.label for series in drawn.views[0].series}
    assert "plan's routing (ours)" in {
        row[0] for row in tables(claim.cells, results, SETTINGS)[0].rows
    }
    assert "only the routing is used" in read_claims(["3"])[0].checked


def test_cells_are_named_in_words() -> None:
    cell = TrainingCell("cifar-100", "labels(31)", "time", "lognormal")
    assert cell.title == "CIFAR-100, 31 labels per client, lognormal times"
    assert TrainingCell("kmnist", "dirichlet(0.5)", "time").title == "KMNIST, Dirichlet"
