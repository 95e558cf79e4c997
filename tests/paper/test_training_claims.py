"""Training claims: judged from histories, seed by seed; wrong results change the verdict."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from reproduction.checks import above, alike
from reproduction.claims import read_claims
from reproduction.intervals import SequentialIntervals
from reproduction.measures import (
    ALIKE,
    SLOWEST_LABEL,
    Difference,
    accuracy_throughout,
    by_strategy,
    final_accuracy,
    judged as judge_contrasts,
    level_for,
    log_ratios,
    spikes,
)
from reproduction.settings import SCALES, Settings, TrainingCell
from reproduction.strategies import routing_of
from reproduction.training import (
    Missing,
    TrainingClaim,
    exponential,
    figures,
    judge,
    long_enough,
    read_finding,
    read_training,
    tables,
)
from reproduction.verdict import Finding, Statement
from sojourn._support.configuration import Table
from sojourn.fleet.laws import Law
from sojourn.runs.comparison import SPENT
from sojourn.runs.history import History

PAIRS = 4
"""Those of the first look."""

QUICK = Settings.read("quick")
SETTINGS = dataclasses.replace(
    QUICK,
    sizes={
        name: dataclasses.replace(size, looks=SequentialIntervals((PAIRS, 6)))
        for name, size in QUICK.sizes.items()
    },
)
"""The quick length, with as many pairs for all data sets."""
FULL = dataclasses.replace(
    Settings.read("paper"),
    sizes={
        name: dataclasses.replace(size, looks=SequentialIntervals((PAIRS,)), fewer=())
        for name, size in Settings.read("paper").sizes.items()
    },
)
"""The paper's length, with fewer seeds."""


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
        for seed in range(PAIRS)
    ]


def training_claim(number: str) -> TrainingClaim:
    parameters = read_claims([number])[0].parameters
    return read_training(Table({**parameters.values}, parameters.where))


def verdict(statements: tuple[Statement, ...]) -> str:
    return Finding("3", "t", "s", "c", "quick", statements).verdict


GOOD = {"uniform": 0.75, "balanced": 0.76, "g-optimal": 0.82, "square-root": 0.75, "plan": 0.8}
STEADY = {"uniform": 0.4, "balanced": 0.4, "g-optimal": 0.05}


def without_gains_and_times(claim: TrainingClaim) -> TrainingClaim:
    """The claim without the statements about a number of points, about equal times and about spikes."""
    others = ("same-time", "spikes")
    kept = (c for c in claim.comparisons if c.by == 0.0 and c.measure not in others)
    return dataclasses.replace(claim, comparisons=tuple(kept))


def test_claim_3_reproduces_from_good_results_and_not_from_wrong_ones() -> None:
    claim = without_gains_and_times(training_claim("3"))
    good = {cell: runs(GOOD, STEADY) for cell in claim.needed}
    wrong = {cell: runs({**GOOD, "g-optimal": 0.70}, {"g-optimal": 0.9}) for cell in claim.needed}
    assert verdict(judge(claim, good, FULL)) == "reproduces"
    assert verdict(judge(claim, wrong, FULL)) == "does not reproduce"
    assert verdict(judge(claim, good, SETTINGS)) == "reproduces where conclusive"
    assert verdict(judge(claim, wrong, SETTINGS)) == "does not reproduce where conclusive"


@pytest.mark.parametrize("number", ["3", "7", "8", "9"])
def test_images_much_smaller_than_the_papers_tell_nothing_whatever_the_test_says(
    number: str,
) -> None:
    claim = training_claim(number)
    every = {**GOOD, "h-printed": 0.85}
    for results in (every, {**every, "g-optimal": 0.6, "h-printed": 0.5}):
        made = {cell: runs(results, STEADY) for cell in claim.needed}
        small = [s for s in judge(claim, made, SETTINGS) if "CIFAR" in s.about]
        assert {s.outcome for s in small} == {"inconclusive"}
        assert all("6% of the pixels" in s.found and s.compared for s in small)
        assert all("8 x 8 pixels, mlp(32), batches of 32, 10%" in s.size for s in small)
        full = [s for s in judge(claim, made, FULL) if "CIFAR" in s.about]
        assert {s.outcome for s in full} - {"inconclusive"}
        assert all(s.size.endswith("at the paper's size") for s in full)


def test_the_ranking_at_equal_times_is_that_at_the_end_of_the_faster_run() -> None:
    fast = scattered("a", [0.7] * 4)
    slow = [
        dataclasses.replace(run, time=9.0 * run.time)
        for run in scattered("b", [0.9, 0.9, 0.91, 0.9])
    ]
    assert judged("final", fast, slow).outcome == "does not reproduce"
    assert judged("same-time", fast, slow).outcome == "reproduces"


def test_a_saved_finding_is_judged_by_todays_rule(tmp_path: Path) -> None:
    claim = training_claim("9")
    every = {**GOOD, "h-printed": 0.5}
    made = {cell: runs(every, STEADY) for cell in claim.needed}
    # As an older rule had it: decided, without a word on the size.
    old = tuple(
        dataclasses.replace(s, size="", outcome="does not reproduce", found="b")
        for s in judge(claim, made, SETTINGS)
    )
    Finding("9", "t", "s", "c", "quick", old, reduced="small").write(tmp_path)
    read = read_finding(tmp_path)
    assert read.verdict == "inconclusive"
    assert read.rests_on.startswith("nothing is decided: CIFAR-10 at 8 x 8 pixels")
    read.write(tmp_path)
    assert read_finding(tmp_path).statements == read.statements


@pytest.mark.parametrize("final", [0.70, 0.82])
def test_runs_much_shorter_than_the_papers_tell_nothing(final: float) -> None:
    claim = training_claim("3")
    results = {cell: runs({**GOOD, "g-optimal": final}, STEADY) for cell in claim.needed}
    sizes = {
        name: dataclasses.replace(size, rounds=200 if "cifar" in name else size.rounds)
        for name, size in SETTINGS.sizes.items()
    }
    hasty = dataclasses.replace(SETTINGS, sizes=sizes)
    short = [s for s in judge(claim, results, hasty) if "CIFAR" in s.about]
    assert {s.outcome for s in short} == {"inconclusive"}
    assert all("too early to tell" in s.found for s in short)
    whole = judge(without_gains_and_times(claim), results, FULL)
    assert "inconclusive" not in {s.outcome for s in whole}


def test_missing_data_is_said_and_the_rest_goes_on() -> None:
    claim = without_gains_and_times(training_claim("3"))
    results = {
        cell: Missing("cifar-10 is not here") if cell.data == "cifar-10" else runs(GOOD, STEADY)
        for cell in claim.needed
    }
    statements = judge(claim, results, FULL)
    for statement in statements:
        absent = "CIFAR-10," in statement.about
        assert statement.outcome == ("data not found" if absent else "reproduces")
    assert verdict(statements) == "reproduces where conclusive"
    assert len(figures("3", claim.cells, results, SETTINGS)) == 4
    assert len(tables(claim.cells, results, SETTINGS)) == 4
    nothing = {cell: Missing("not here") for cell in claim.needed}
    assert verdict(judge(claim, nothing, SETTINGS)) == "data not found"


def claim_about(measure: str, **more: object) -> TrainingClaim:
    """A claim with one statement about strategies a and b in one cell."""
    statement = {"says": "it", "measure": measure, "strategy": "a", "over": ["b"], **more}
    cell = {"data": "kmnist", "partition": "homogeneous"}
    return read_training(Table({"setting": "time", "cell": [cell], "statement": [statement]}, "t"))


def judged(measure: str, own: list[History], rival: list[History], **more: object) -> Statement:
    claim = claim_about(measure, **more)
    settings = FULL if "by" in more else SETTINGS
    return judge(claim, {claim.cells[0]: [*own, *rival]}, settings)[0]


def scattered(strategy: str, finals: list[float]) -> list[History]:
    """One run per final accuracy, seeds from 0."""
    return [run(strategy, seed, final - 0.002 * seed) for seed, final in enumerate(finals)]


def test_noise_cannot_be_told_and_the_pairs_that_it_needs_are_said() -> None:
    even = scattered("b", [0.5] * 4)
    noise = judged("final", scattered("a", [0.52, 0.49, 0.51, 0.50]), even)
    assert noise.outcome == "inconclusive"
    assert noise.needs is not None and noise.needs > 4
    assert f"About {noise.needs} pairs would tell" in noise.found
    single = judged("final", scattered("a", [0.6]), even)
    assert (single.outcome, single.needs) == ("inconclusive", None)
    assert judged("final", scattered("a", [0.55, 0.551, 0.549, 0.55]), even).outcome == "reproduces"


def test_every_statement_has_its_difference_interval_and_pairs() -> None:
    even = scattered("b", [0.5] * 4)
    told = judged("final", scattered("a", [0.55, 0.56, 0.54, 0.55]), even)
    (compared,) = told.compared
    assert compared.estimate == pytest.approx(5.0)
    assert compared.pairs == 4
    assert compared.low is not None and compared.high is not None
    assert compared.low < 5.0 < compared.high
    assert told.found == (
        f"a 55.0%; points over b +5.0 [{compared.low:+.1f}, {compared.high:+.1f}]; 4 pairs."
    )


def test_a_statement_is_told_at_the_first_look_that_tells_whatever_comes_later() -> None:
    even = scattered("b", [0.5] * 6)
    early = judged("final", scattered("a", [0.55, 0.551, 0.549, 0.55, 0.1, 0.9]), even)
    assert early.outcome == "reproduces"
    assert early.compared[0].pairs == 4
    late = judged("final", scattered("a", [0.55, 0.50, 0.54, 0.55, 0.54, 0.55]), even)
    assert late.compared[0].pairs == 6


def test_runs_are_paired_by_seed() -> None:
    own = scattered("a", [0.5, 0.6, 0.7, 0.8, 0.9])
    rival = [run("b", h.seed, f) for h, f in zip(own, [0.4, 0.5, 0.6, 0.7, 0.8], strict=True)]
    shuffled = judged("final", own[::-1][1:], rival[1:])
    assert shuffled.compared[0].pairs == 3


def test_a_gain_is_told_from_what_was_said_of_it() -> None:
    even = scattered("b", [0.5] * 4)
    ahead = scattered("a", [0.58, 0.581, 0.579, 0.58])
    assert judged("final", ahead, even).outcome == "reproduces"
    assert judged("final", ahead, even, by=0.1).outcome == "does not reproduce"
    assert judged("final", ahead, even, by=0.05).outcome == "reproduces"
    claim = claim_about("final", by=0.1)
    (reduced,) = judge(claim, {claim.cells[0]: [*ahead, *even]}, SETTINGS)
    assert reduced.outcome == "inconclusive"
    assert "trends, not numbers" in reduced.found


LOOKS = sorted(
    {size.looks.pairs for s in (QUICK, Settings.read("standard")) for size in s.sizes.values()}
)
"""Every sequence of looks that is taken."""


@pytest.mark.slow
@pytest.mark.parametrize("looks", LOOKS)
def test_results_without_a_difference_are_told_in_at_most_five_percent_of_trials(
    looks: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(21)
    told = dict.fromkeys((1, 2, 4), 0)
    trials = 1000
    for _ in range(trials):
        values = 0.5 + 0.02 * rng.standard_normal((5, looks[-1]))
        for rivals in told:
            contrasts = [Difference("", tuple(values[0] - values[k])) for k in range(1, rivals + 1)]
            outcome = judge_contrasts(contrasts, SequentialIntervals(looks), above).outcome
            told[rivals] += outcome != "inconclusive"
    assert all(number <= 0.05 * trials for number in told.values())
    spent = SPENT * 0.05 * trials
    assert told[1] >= spent - 3 * spent**0.5, "no more is wasted than said"


@pytest.mark.parametrize("looks", LOOKS)
def test_one_deviation_is_told_within_twelve_pairs_in_four_of_five_trials(
    looks: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(25)
    within = [pairs for pairs in looks if pairs <= 12]
    told, trials = 0, 1000
    for _ in range(trials):
        gains = Difference("", tuple(0.5 + 0.5 * rng.standard_normal(within[-1])))
        told += judge_contrasts([gains], SequentialIntervals(looks), above).outcome == "reproduces"
    assert told >= 0.8 * trials


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("off", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_what_just_leaves_the_margin_is_told_in_at_most_five_percent_of_trials(
    looks: tuple[int, ...], off: int
) -> None:
    rng = np.random.default_rng(22)
    trials, wrong = 1000, 0
    middle = np.where(np.arange(4) < off, ALIKE, 0.0)[:, None]
    for _ in range(trials):
        values = middle + 0.01 * rng.standard_normal((4, looks[-1]))
        contrasts = [Difference("", tuple(row), (-ALIKE, ALIKE)) for row in values]
        outcome = judge_contrasts(
            contrasts, SequentialIntervals(looks), partial(alike, within=ALIKE)
        ).outcome
        wrong += outcome != "inconclusive"
    assert wrong <= 0.05 * trials


def test_what_holds_of_each_needs_no_more_pairs_for_being_said_of_many() -> None:
    gain = Difference("", (0.016, 0.028, 0.016, 0.028))
    looks = SequentialIntervals((4, 6))
    for number in (1, 4):
        assert judge_contrasts([gain] * number, looks, above).outcome == "reproduces"
    shared = looks.of_difference(gain.values, level_for(4))
    assert shared.side(of=0.0) == 0, "it would not be told if all shared the level"
    loss = Difference("", tuple(-value for value in gain.values))
    assert judge_contrasts([loss], looks, above).outcome == "does not reproduce"
    assert judge_contrasts([loss] * 4, looks, above).outcome == "inconclusive"


def test_a_statement_without_all_of_its_runs_is_not_judged() -> None:
    claim = training_claim("3")
    balanced = tuple(c for c in claim.comparisons if "balanced" in (c.strategy, *c.over))
    claim = dataclasses.replace(claim, comparisons=balanced)
    every = {cell: runs(GOOD, STEADY) for cell in claim.needed}
    cell = claim.cells[0]
    every[cell] = [h for h in every[cell] if h.strategy != "balanced"]
    for statement in judge(claim, every, SETTINGS):
        assert (not statement.compared) == (statement.about == cell.title)
        assert bool(statement.compared) == ("Not run" not in statement.found)


def test_equal_means_of_scattered_runs_are_not_alike() -> None:
    even = scattered("b", [0.5] * 4)
    noisy = judged("alike", scattered("a", [0.9, 0.1, 0.5, 0.5]), even)
    assert noisy.outcome == "inconclusive"
    near = judged("alike", scattered("a", [0.51, 0.52, 0.51, 0.52]), even)
    assert near.outcome == "reproduces"
    assert near.found.startswith("Differences in points: a - b +1.5 [")
    far = judged("alike", scattered("a", [0.61, 0.62, 0.61, 0.62]), even)
    assert far.outcome == "does not reproduce"
    assert judged("alike", scattered("a", [0.5]), even).outcome == "inconclusive"


def test_insensitivity_is_not_claimed_of_scattered_runs() -> None:
    claim = training_claim("8")
    every = {**GOOD, "h-printed": 0.85, "h-optimal": 0.8}
    results = {cell: runs(every, STEADY) for cell in claim.needed}
    for cell in claim.cells:
        results[cell] = [
            h
            for name, final in every.items()
            for h in scattered(name, [final + 0.1, final - 0.1, final, final])
        ]
    told = [s for s in judge(claim, results, SETTINGS) if "insensitive" in s.says]
    assert {s.outcome for s in told} == {"inconclusive"}


def wobbling(strategy: str, wobble: float) -> list[History]:
    """Runs whose losses lie about a common course by ``wobble``."""
    rng = np.random.default_rng(len(strategy) + ord(strategy[0]))
    made = [run(strategy, seed, 0.5) for seed in range(4)]
    return [
        dataclasses.replace(one, test_loss=one.test_loss + wobble * rng.standard_normal(one.rows))
        for one in made
    ]


@pytest.mark.parametrize(
    ("own", "outcome"),
    [(0.01, "reproduces"), (0.08, "inconclusive"), (0.8, "does not reproduce")],
)
def test_steadier_needs_more_than_a_chance_ratio_of_distances(own: float, outcome: str) -> None:
    told = judged("steadier", wobbling("a", own), wobbling("b", 0.08))
    assert told.outcome == outcome
    assert told.compared[0].estimate == pytest.approx(0.08 / own, rel=0.5)


def spread_is_told(
    looks: SequentialIntervals, rival: np.ndarray, own: np.ndarray, within: int = 10**9
) -> np.ndarray:
    """In which trials, of shape (trials, runs, places), the ratio of spreads is told from 1."""
    told = np.zeros(len(own), dtype=bool)
    for pairs in (n for n in looks.pairs if n <= within):
        ratios = log_ratios(rival[:, :pairs], own[:, :pairs])
        told |= [looks.of_difference(row).side(of=0.0) != 0 for row in ratios.tolist()]
    return told


DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy-tailed": lambda rng, shape: rng.standard_t(3, shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) ** 1.5,
}


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("common", [0.0, 1.0])
def test_equal_spreads_are_told_in_at_most_five_percent_of_trials(kind: str, common: float) -> None:
    rng = np.random.default_rng(23)
    trials = 1000
    shared, own, rival = (DISTRIBUTIONS[kind](rng, (trials, 24, 5)) for _ in range(3))
    told = spread_is_told(
        SequentialIntervals((6, 12, 24)), rival + common * shared, own + common * shared
    )
    assert told.sum() <= 0.05 * trials


def test_twice_the_spread_is_told_within_twelve_pairs_in_four_of_five_trials() -> None:
    rng = np.random.default_rng(24)
    own, rival = rng.standard_normal((2, 1000, 12, 5))
    assert (
        spread_is_told(SequentialIntervals((6, 12, 24)), 2.0 * rival, own, within=12).mean() >= 0.8
    )


def test_steadiness_of_runs_that_diverged_cannot_be_told() -> None:
    own = wobbling("a", 0.4)
    own[0] = History(**{**vars(own[0]), "diverged_at": 500})
    told = judged("steadier", own, wobbling("b", 0.01))
    assert told.outcome == "inconclusive"
    assert "b unknown" in told.found


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
    told = [s for s in judge(claim, results, FULL) if "insensitive" in s.says]
    assert {s.outcome for s in told} == {"reproduces"}
    for cell in claim.cells:
        results[cell] = runs({name: final - 0.2 for name, final in every.items()}, STEADY)
    told = [s for s in judge(claim, results, FULL) if "insensitive" in s.says]
    assert {s.outcome for s in told} == {"does not reproduce"}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("number", ["3", "6", "7", "8", "9", "10"])
def test_every_cell_has_a_size_a_setting_and_a_name_of_its_own(number: str, scale: str) -> None:
    settings, claim = Settings.read(scale), training_claim(number)
    assert len({cell.name for cell in claim.needed}) == len(claim.needed)
    for cell in claim.needed:
        size, setting = settings.sizes[cell.data], settings.settings[cell.setting]
        assert (size.time if setting.axis == "time" else size.rounds) is not None
        assert long_enough(cell, settings)
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
    assert (sizes["fashion-mnist"].rounds, sizes["fashion-mnist"].looks) == (
        3000,
        SequentialIntervals((10,)),
    )
    assert (sizes["kmnist"].time, sizes["cifar-10"].rounds) == (3000.0, 30000)
    assert Settings.read("paper").reduced == ""
    assert Settings.read("paper").budget is None
    assert Settings.read("quick").reduced
    assert Settings.read("standard").budget == 90 * 60.0


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


def with_spikes(history: History, number: int) -> History:
    """The same run, its loss a fifth higher at so many evaluations, none beside another."""
    loss = history.test_loss.copy()
    loss[2 : 2 + 2 * number : 2] *= 1.2
    return dataclasses.replace(history, test_loss=loss)


def test_spikes_are_rises_by_a_tenth_and_diverged_runs_have_no_number() -> None:
    steady = dataclasses.replace(run("uniform", 0, 0.8), test_loss=np.full(11, 1.0))
    assert [spikes(with_spikes(steady, k)) for k in (0, 1, 3)] == [0.0, 1.0, 3.0]
    small = dataclasses.replace(steady, test_loss=np.resize([1.0, 1.09], 11))
    assert spikes(small) == 0.0
    assert np.isnan(spikes(dataclasses.replace(steady, diverged_at=500)))


@pytest.mark.parametrize(
    ("balanced", "printed", "outcome"),
    [(3, 0, "reproduces"), (0, 3, "does not reproduce"), (1, 1, "inconclusive")],
)
def test_more_spikes_under_balanced_routing_are_told_from_fewer(
    balanced: int, printed: int, outcome: str
) -> None:
    claim = training_claim("6")
    numbers = {"balanced": balanced, "h-printed": printed}
    strategies = ("uniform", "balanced", "g-optimal", "h-printed")
    plain = runs(dict.fromkeys(strategies, 0.5))
    found = [with_spikes(one, numbers.get(one.strategy, 0) + one.seed % 2) for one in plain]
    told = judge(claim, dict.fromkeys(claim.needed, found), FULL)
    outcomes = {s.outcome for s in told if "spikes" in s.says}
    assert outcomes == {outcome}


@pytest.mark.parametrize(
    ("lead", "outcome"),
    [(0.02, "reproduces"), (0.30, "does not reproduce"), (None, "inconclusive")],
)
def test_a_label_that_is_favoured_is_told_from_one_that_is_not(
    lead: float | None, outcome: str
) -> None:
    claim = training_claim("7")
    found = []
    for one in runs(GOOD):
        gap = np.full(one.rows, np.nan)
        own = lead if one.strategy == "g-optimal" else 0.0
        gap[-1] = np.nan if own is None else -0.1 + own + 0.002 * one.seed
        found.append(dataclasses.replace(one, metrics={SLOWEST_LABEL: gap}))
    made = dict.fromkeys(claim.needed, found)
    (told,) = [s for s in judge(claim, made, FULL) if "favour" in s.says]
    assert (told.outcome, told.about) == (outcome, "Fashion-MNIST, one label per client")
    (drawn,) = figures("7", [c for c in claim.cells if c.setting == "disjoint"], made, FULL)
    assert {view.metric for view in drawn.views} == {"accuracy", "loss"}


def test_bands_are_standard_deviations_over_runs() -> None:
    claim = training_claim("6")
    found = runs({"uniform": 0.5, "balanced": 0.7}, {"balanced": 0.3})
    drawn = figures("6", claim.cells[:1], {claim.cells[0]: found}, FULL)[0]
    for view in drawn.views:
        for curve in view.series:
            own = [one for one in found if one.strategy == curve.name]
            values = np.stack([one.values(view.metric) for one in own])
            spread = np.log(values) if view.log_y else values
            deviation = spread.std(axis=0, ddof=1)
            assert curve.high is not None
            expected = curve.y * np.exp(deviation) if view.log_y else curve.y + deviation
            np.testing.assert_allclose(curve.high, expected, rtol=1e-12)


def test_the_scale_paper_has_the_papers_numbers_of_seeds() -> None:
    """Ten for Fashion-MNIST and figure 4, three for CIFAR against rounds, five in figures 9 to 11."""
    paper = Settings.read("paper")
    assert paper.run_by_run and not paper.reduced
    seeds = {}
    for number in ("3", "6", "7", "8", "9"):
        for cell in training_claim(number).cells:
            seeds[cell.name] = paper.looks(cell).pairs
    for name, pairs in seeds.items():
        cifar, against_time = "cifar" in name, name.startswith("time-")
        other_law = not name.endswith("exponential")
        if not against_time:
            expected = 3 if cifar else 10
        elif "cifar-100" in name and other_law:
            expected = 3
        else:
            expected = 5 if cifar or other_law or "labels" in name else 10
        assert pairs == (expected,), name


def test_settings_are_those_that_the_paper_prints() -> None:
    settings = Settings.read("paper").settings
    twenty, three, disjoint = (settings[name] for name in ("rounds", "time", "disjoint"))
    found = [(one.fleet.size, one.concurrency, one.learning_rate) for one in settings.values()]
    assert found[:3] == [(20, 100, 0.01), (30, 30, 0.01), (10, 100, 0.005)]
    for setting, scale in ((twenty, 100), (disjoint, 50)):
        rates = setting.fleet.expand(setting.fleet.service_rates)
        np.testing.assert_allclose(rates, np.exp(np.arange(1, rates.size + 1) / scale))
        assert rates[-1] / rates[0] == pytest.approx(1.2, abs=0.01), "a fifth faster"
    times = 1.0 / three.fleet.expand(three.fleet.service_rates)
    np.testing.assert_allclose(times, np.repeat([100.0, 10.0, 1.0], 10))


def test_cells_have_the_papers_partitions_and_laws() -> None:
    """Three labels of ten, five of a hundred against rounds and 31 against time; two other laws."""
    few = {
        (cell.data, cell.setting): cell.partition
        for number in ("7", "8")
        for cell in training_claim(number).cells
        if cell.partition.startswith("labels")
    }
    assert few == {
        ("fashion-mnist", "rounds"): "labels(3)",
        ("cifar-10", "rounds"): "labels(3)",
        ("cifar-100", "rounds"): "labels(5)",
        ("kmnist", "time"): "labels(3)",
        ("cifar-10", "time"): "labels(3)",
        ("cifar-100", "time"): "labels(31)",
    }
    laws = {cell.law for cell in training_claim("8").cells}
    assert laws == {"deterministic", "lognormal"}
    assert dict(Law("lognormal").parameters) == {"sigma": 1.0}
