"""``sojourn analyze`` as a user types it."""

import json

import numpy as np
import pytest

import sojourn as sj


def test_table(run):
    result = run("analyze", "three-clusters", "--concurrency", "30", "--routing", "balanced")
    assert result.code == 0
    assert "throughput 5.644 rounds" in result.out
    assert "utilisation" in result.out


def test_json_equals_the_library(run, tmp_path):
    fleet = sj.Fleet([0.5, 2.0], counts=[3, 2], names=["old", "new"])
    fleet.to_csv(tmp_path / "fleet.csv")
    (tmp_path / "routing.csv").write_text("routing\n0.1\n0.35\n")
    result = run("analyze", "fleet.csv", "--concurrency", "7", "--routing", "routing.csv", "--json")
    assert result.code == 0
    printed = json.loads(result.out)
    analysis = sj.analyze(sj.Network(fleet, [0.1, 0.35], 7))
    assert printed["throughput"] == analysis.throughput
    assert [row["name"] for row in printed["classes"]] == ["old", "new"]
    np.testing.assert_array_equal(
        [row["staleness"] for row in printed["classes"]], analysis.staleness
    )


@pytest.mark.parametrize("rate, kind", [("0.01", "proxy"), ("0.0001", "guarantee")])
def test_bounds_say_what_they_are(run, rate, kind):
    result = run(
        *("analyze", "twenty", "--concurrency", "20", "--constants", "1,1,1,2"),
        *("--learning-rate", rate, "--json"),
    )
    bounds = json.loads(result.out)["bounds"]
    assert bounds["kind"] == kind
    assert (float(rate) <= bounds["max_learning_rate"]) == (kind == "guarantee")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("three-cluster", "--concurrency", "3"), "did you mean 'three-clusters'"),
        (("none.csv", "--concurrency", "3"), "none.csv: cannot be read"),
        (("twenty", "--concurrency", "0"), "at least 1"),
        (("twenty", "--concurrency", "3", "--routing", "balance"), "did you mean 'balanced'"),
        (("twenty", "--concurrency", "3", "--constants", "1,2"), "four numbers L,sigma,M,A"),
        (("twenty", "--concurrency", "3", "--constants", "1,1,1,0"), "initial_gap must be"),
    ],
)
def test_mistakes_get_a_sentence(run, arguments, message):
    result = run("analyze", *arguments)
    assert result.code == 2
    assert message in result.error
    assert "Traceback" not in result.error
