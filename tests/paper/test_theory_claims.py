"""Claims 1, 2, 4 and 5 at full size: the verdicts follow from results, and change with them."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from reproduction import concurrency, per_round_optimum, per_time_optimum, third_term
from reproduction.claims import Claim, read_claims
from sojourn._support.configuration import Table

MODULES: dict[str, Any] = {
    "1": third_term,
    "2": per_round_optimum,
    "4": concurrency,
    "5": per_time_optimum,
}


@cache
def computed(number: str) -> tuple[Claim, Any]:
    claim = read_claims([number])[0]
    parameters = Table({**claim.parameters.values}, claim.parameters.where)
    if "replicates" in parameters.values:
        parameters.values["replicates"] = 20
    return claim, MODULES[number].compute(parameters)


def outcomes(number: str, results: Any = None) -> dict[str, str]:
    judged = MODULES[number].judge(results or computed(number)[1])
    return {key: entry.outcome for key, entry in judged.items()}


@pytest.mark.parametrize("number", sorted(MODULES))
def test_every_statement_of_the_file_is_judged_and_nothing_else(number: str) -> None:
    claim, results = computed(number)
    assert set(MODULES[number].judge(results)) == set(claim.says)
    assert len(claim.statements(MODULES[number].judge(results))) == len(claim.says)


def test_claim_1_reproduces() -> None:
    assert set(outcomes("1").values()) == {"reproduces"}


def test_claim_1_fails_when_the_minimum_is_elsewhere() -> None:
    _, results = computed("1")
    moved = replace(results, minima=dict.fromkeys(results.minima, (0.5, 1.0)))
    assert outcomes("1", moved)["slow"] == "does not reproduce"
    flat = replace(results, curves={name: np.arange(5.0) for name in results.curves})
    assert outcomes("1", flat)["non-monotonic"] == "does not reproduce"


def test_claim_2_reproduces_but_for_the_slowdown() -> None:
    found = outcomes("2")
    assert found.pop("slowdown") == "does not reproduce"
    assert set(found.values()) == {"reproduces"}


def test_claim_2_changes_with_its_results() -> None:
    _, results = computed("2")
    times = {**results.times, "g-optimal": 7.4 * results.times["uniform"]}
    assert outcomes("2", replace(results, times=times))["slowdown"] == "reproduces"
    uniform = {**results.routings, "g-optimal": results.routings["uniform"]}
    wrong = outcomes("2", replace(results, routings=uniform))
    assert wrong["slowest"] == wrong["shape"] == "does not reproduce"
    falling = {**results.by_tasks, "balanced": results.by_tasks["balanced"][::-1]}
    assert outcomes("2", replace(results, by_tasks=falling))["tasks"] == "does not reproduce"


def test_claim_4_finds_the_best_numbers_of_tasks() -> None:
    _, results = computed("4")
    assert list(results.best.values()) == [201, 107, 52, 18, 8]
    assert outcomes("4") == {
        "interior": "reproduces",
        "falls": "reproduces",
        "slowly": "inconclusive",
    }
    near = {gap: list(best.values()) for gap, best in results.by_gap.items() if gap < 0.0011}
    assert list(near.values()) == [[13, 9, 6, 4, 3]]


def test_claim_4_says_for_which_constants_the_best_number_falls_slowly() -> None:
    _, results = computed("4")
    assert results.slow == "from 0.001 to 0.316, at 70.8, from 89.1 to 100"
    for gap, best in results.inside.items():
        assert (concurrency.elasticity(best) < 1.0) == (
            gap < 0.32 or 70.0 < gap < 71.0 or gap > 85.0
        )
    found = concurrency.judge(results)["slowly"].found
    assert "prints neither the constants nor the learning rates" in found
    assert f"falls slowly {results.slow}" in found
    fast = {gap: dict(zip(results.best, (200, 40, 10, 4, 2), strict=True)) for gap in (0.1, 1.0)}
    assert replace(results, by_gap=fast).slow == ""
    assert "nowhere falls less" in words("4", replace(results, by_gap=fast))


def test_claim_4_fails_when_more_tasks_are_always_better() -> None:
    _, results = computed("4")
    falling = replace(results, curves={eta: np.arange(400.0, 0.0, -1.0) for eta in results.curves})
    assert outcomes("4", falling)["interior"] == "does not reproduce"


def test_claim_5_finds_a_lower_minimum_than_the_printed_one() -> None:
    _, results = computed("5")
    assert results.entries["h-optimal"].per_time == pytest.approx(1266.5528, rel=1e-6)
    assert results.entries["h-printed"].per_time == pytest.approx(1765, rel=1e-3)
    assert results.distance < 0.02, "the descent passes near the printed vector"
    assert outcomes("5") == {
        "minimum": "does not reproduce",
        "order": "reproduces",
        "balanced": "reproduces",
        "uniform": "reproduces",
        "printed": "reproduces",
        "per-round": "does not reproduce",
    }


def test_claim_5_tells_the_printed_vector_from_the_optimum() -> None:
    claim, results = computed("5")
    assert claim.says["printed"].text == "With the printed p*H, 3 200 rounds are completed."
    found = per_time_optimum.judge(results)["printed"].found
    assert found.startswith("3,086 in steady state")
    assert "The true optimum of H: 7,171 in steady state" in found


def test_claim_5_does_not_judge_a_heuristic_that_the_paper_only_mentions() -> None:
    claim, results = computed("5")
    assert "throughput" not in claim.says
    (table,) = per_time_optimum.tables(results)
    assert "common heuristic" in table.note
    assert "16,932 rounds in steady state, the fastest routing found 23,191, 1.37" in table.note


def test_claim_5_changes_with_its_results() -> None:
    _, results = computed("5")
    entries = dict(results.entries)
    entries["h-optimal"] = replace(entries["h-optimal"], per_time=1765.0)
    entries["uniform"] = replace(entries["uniform"], steady_rounds=900.0)
    changed = outcomes("5", replace(results, entries=entries))
    assert changed["minimum"] == "reproduces"
    assert changed["uniform"] == "does not reproduce"


@pytest.mark.parametrize("number", sorted(MODULES))
def test_figures_say_in_words_what_they_show(number: str) -> None:
    _, results = computed(number)
    for figure in MODULES[number].figures(results):
        assert len(figure.alt) > 30
        assert figure.name.startswith(f"claim-{number}-")
    assert all(table.rows for table in MODULES[number].tables(results))


def words(number: str, results: Any) -> str:
    return " ".join(figure.alt for figure in MODULES[number].figures(results))


def test_the_words_of_claim_1_follow_its_curves() -> None:
    _, results = computed("1")
    assert "turn between falling and rising 3 times" in words("1", results)
    steady = {name: np.arange(third_term.GRID.size) + 1.0 for name in results.curves}
    assert "rising 0 times" in words("1", replace(results, curves=steady))


def test_the_words_of_claim_2_follow_its_routings() -> None:
    _, results = computed("2")
    assert "2.48% to 2.63% to each of the others, falling with speed" in words("2", results)
    assert "rising at every step" in words("2", results)
    routings = {**results.routings, "g-optimal": results.routings["g-optimal"][::-1]}
    shares = dict(zip(results.shares, [0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1], strict=True))
    changed = words("2", replace(results, routings=routings, shares=shares))
    assert "not falling throughout" in changed
    assert "not always rising" in changed


def test_the_words_of_claim_4_count_the_minima_inside() -> None:
    _, results = computed("4")
    assert "5 of 5 curves" in words("4", results)
    falling = replace(results, curves={eta: np.arange(400.0, 0.0, -1.0) for eta in results.curves})
    assert "0 of 5 curves" in words("4", falling)


def test_the_words_of_claim_5_follow_the_descent() -> None:
    _, results = computed("5")
    assert "in 6,000 steps" in words("5", results)
    assert f"the path at step {results.nearest_step:,}" in words("5", results)
    late = replace(results, nearest_step=5_999, distance=0.4)
    assert "step 5,999, whose probabilities differ from it by at most 40.0%" in words("5", late)
