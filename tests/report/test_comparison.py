"""Strategies compared seed by seed: against SciPy, by hand, and with times that were not reached."""

import csv
import io
import math

import numpy as np
import pytest
from scipy import stats

from sojourn.errors import InvalidInput, UnknownName
from sojourn.report.comparison import compare
from sojourn.runs.history import History


def run(strategy, seed, final, *, times=(0.0, 5.0, 10.0), **changes):
    rows = len(times)
    values = {key: [1.0] * rows for key in ("test_loss", "train_loss", "staleness")}
    values |= {key: list(range(rows)) for key in ("round", "gradients", "updates")}
    accuracy = np.linspace(0.1, final, rows)
    labels = {"strategy": strategy, "seed": seed, "learning_rate": 0.1, "clock": "virtual"}
    return History(**labels, **{**values, "time": times, "test_accuracy": accuracy, **changes})


FIRST = [0.70, 0.74, 0.71, 0.78]
SECOND = [0.75, 0.76, 0.77, 0.80]


def groups():
    return {
        name: [run(name, seed, final) for seed, final in enumerate(finals)]
        for name, finals in (("uniform", FIRST), ("plan_1", SECOND))
    }


def test_the_paired_test_is_that_of_scipy():
    found = compare(groups())
    reference, other = found.rows
    assert reference.paired is None
    theirs = stats.ttest_rel(SECOND, FIRST)
    interval = theirs.confidence_interval()
    assert other.paired.p == pytest.approx(theirs.pvalue, rel=1e-10)
    assert (other.paired.low, other.paired.high) == pytest.approx(tuple(interval), rel=1e-10)
    assert other.paired.difference == pytest.approx(0.0375)
    assert other.final.standard_error == pytest.approx(np.std(SECOND, ddof=1) / 2)


def test_runs_are_paired_by_seed_whatever_their_order():
    mixed = groups()
    mixed["plan_1"] = mixed["plan_1"][::-1]
    assert compare(mixed).rows[1].paired == compare(groups()).rows[1].paired


def test_only_common_seeds_are_paired_and_one_tells_nothing():
    fewer = {**groups(), "alone": [run("alone", 2, 0.9)]}
    alone = compare(fewer).rows[2].paired
    assert alone.seeds == 1
    assert alone.difference == pytest.approx(0.9 - 0.71)
    assert math.isnan(alone.p)


def test_several_comparisons_are_corrected_as_holm_does():
    many = groups()
    many["third"] = [run("third", seed, f) for seed, f in enumerate([0.71, 0.73, 0.74, 0.77])]
    _, second, third = compare(many).rows
    small, large = sorted([second.paired.p, third.paired.p])
    wanted = {small: min(1.0, 2 * small), large: min(1.0, max(2 * small, large))}
    for row in (second, third):
        assert row.paired.adjusted == pytest.approx(wanted[row.paired.p])


def test_times_that_were_not_reached_are_longer_than_the_run():
    runs = {"uniform": [run("uniform", s, f) for s, f in enumerate([0.9, 0.9, 0.4])]}
    (time,) = compare(runs, [0.5]).rows[0].times
    assert (time.reached, time.runs, time.median) == (2, 3, 5.0)
    assert time.restricted.mean == pytest.approx((5 + 5 + 10) / 3)
    runs = {"uniform": [run("uniform", s, f) for s, f in enumerate([0.9, 0.4, 0.4])]}
    (time,) = compare(runs, [0.5]).rows[0].times
    assert time.median == math.inf


def test_diverged_runs_are_counted_and_left_out():
    lost = groups()
    lost["plan_1"][0] = run("plan_1", 0, 0.99, diverged_at=3)
    row = compare(lost).rows[1]
    assert row.diverged == 1
    assert row.paired.seeds == 3
    assert row.final.mean == pytest.approx(np.mean(SECOND[1:]))


def test_a_run_that_diverged_early_does_not_cut_the_times_of_the_others():
    runs = {
        "slow": [run("slow", seed, final) for seed, final in enumerate([0.52, 0.51, 0.9])],
        "fast": [run("fast", seed, 0.95) for seed in range(3)],
    }
    lost = run("lost", 0, 0.2, times=(0.0, 0.1, 0.2), diverged_at=2)
    rows = compare({**runs, "lost": [lost]}, [0.5]).rows
    (slow,), (fast,), (never,) = (row.times for row in rows)
    assert (slow.horizon, slow.restricted.mean) == (10.0, pytest.approx((10 + 10 + 5) / 3))
    assert fast.restricted.mean == 5.0
    assert fast.paired.difference == pytest.approx(5.0 - 25 / 3)
    assert never.restricted.mean == 10.0, "what diverged is as late as can be"


def test_runs_that_stopped_at_the_target_do_not_cut_the_times_of_slower_ones():
    """As `stop-at` ends them: the fastest run is the shortest, and its end is no horizon."""
    runs = {
        name: [run(name, seed, 0.5, times=(0.0, end / 2, end + seed)) for seed in range(3)]
        for name, end in (("slow", 80.0), ("fast", 20.0))
    }
    (slow,), (fast,) = (row.times for row in compare(runs, [0.5]).rows)
    assert (slow.restricted.mean, fast.restricted.mean) == (81.0, 21.0)
    assert fast.paired.difference == -60.0


def test_two_seeds_that_missed_a_target_are_not_significantly_slower():
    """As times that ended with the run they had p = 0.02."""
    runs = {
        "soon": [run("soon", 0, 0.9), run("soon", 1, 0.8)],
        "late": [run("late", 0, 0.3), run("late", 1, 0.45)],
    }
    (late,) = compare(runs, [0.5]).rows[1].times
    assert late.paired.difference > 0.0
    assert math.isnan(late.paired.p)
    table = list(csv.DictReader(io.StringIO(compare(runs, [0.5]).to_csv())))
    assert [row["time_to_0.5_p"] for row in table] == ["", ""]


def test_csv_and_latex():
    found = compare(groups(), [0.72, 0.9])
    first, second = csv.DictReader(io.StringIO(found.to_csv()))
    assert float(second["final_accuracy"]) == pytest.approx(np.mean(SECOND))
    assert first["p"] == ""
    assert second["time_to_0.72_reached"] == "4"
    assert second["time_to_0.9_median"] == ""
    latex = found.to_latex()
    assert latex.count(r"\\") == 3
    assert r"plan\_1 & $77.0 \pm 1.1\,\%$" in latex
    assert r"time to 72\%" in latex
    assert "$> 10$ (0/4)" in latex


def test_what_cannot_be_compared():
    with pytest.raises(UnknownName, match="plan_2"):
        compare(groups(), reference="plan_2")
    regression = [run("r", 0, 0.5, test_accuracy=[math.nan] * 3)]
    with pytest.raises(InvalidInput, match="accuracy and loss cannot be compared"):
        compare({**groups(), "r": regression})
    with pytest.raises(InvalidInput, match="nothing to compare"):
        compare({})
