"""``sojourn analyze`` as a user types it."""

import json

import numpy as np
import pytest

import sojourn as sj


def test_table(run):
    result = run("analyze", "three-clusters", "--concurrency", "30", "--routing", "balanced")
    assert result.code == 0
    assert "5.644 updates per time unit" in result.out
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


def test_never_queue_is_at_the_floor(run):
    result = run("analyze", "three-clusters", "--policy", "never-queue")
    assert "30 tasks in flight" in result.out, "as many as clients"
    assert result.code == 0
    words = " ".join(result.out.split())
    assert "30 tasks in flight, never-queue" in words
    assert "noise rate 1.233, the least of any policy that lets tasks finish;" in words
    assert "a task takes 37 time units" in words


def test_it_says_when_clients_count_by_weight(run, tmp_path):
    (tmp_path / "fleet.csv").write_text("service_rate,weight\n1,3\n2,1\n")
    for fleet, said in (("fleet.csv", True), ("three-clusters", False)):
        words = " ".join(run("analyze", fleet, "--concurrency", "2").out.split())
        assert "time units, mean over clients" in words
        assert (", each by its weight" in words) is said


def test_json_of_a_policy_equals_the_library(run):
    arguments = ("--concurrency", "40", "--policy", "never-queue", "--json")
    printed = json.loads(run("analyze", "three-clusters", *arguments).out)
    fleet = sj.built_in_fleet("three-clusters")
    analysis = sj.analyze(sj.Network(fleet, sj.uniform_routing(fleet), 40), "never-queue")
    assert printed["noise_rate"] == analysis.noise_rate
    assert (printed["in_flight"], printed["mean_staleness"]) == (30, 29)
    assert "routing" not in printed
    for key, values in {"weight": analysis.weights, "share": analysis.shares}.items():
        assert [row[key] for row in printed["classes"]] == values.tolist()


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
        (("twenty", "--concurrency", "3", "--policy", "idle"), "no theory is known for the policy"),
        (
            ("twenty", "--concurrency", "3", "--policy", "never-queue", "--routing", "uniform"),
            "--routing goes with the policy routed",
        ),
        (("twenty", "--concurrency", "3", "--constants", "1,2"), "four numbers L,sigma,M,A"),
        (("twenty", "--concurrency", "3", "--constants", "1,1,1,0"), "initial_gap must be"),
    ],
)
def test_mistakes_get_a_sentence(run, arguments, message):
    result = run("analyze", *arguments)
    assert result.code == 2
    assert message in result.error
    assert "Traceback" not in result.error


def test_clients_that_come_and_go_are_an_approximation(run, tmp_path):
    (tmp_path / "fleet.csv").write_text(
        "service_rate,count,mean_up,mean_down\n1,4,20,10\n4,2,1,0\n"
    )
    asked = ("analyze", "fleet.csv", "--concurrency", "6")
    shown = run(*asked).out
    assert "An approximation, since clients are intermittent:" in shown
    assert "there" in shown and "0.6667" in shown
    assert json.loads(run(*asked, "--json").out)["exact"] is False


def test_the_law_of_a_fleet_is_taken(run, tmp_path):
    (tmp_path / "fleet.csv").write_text("service_rate,count,law\n1,4,deterministic\n")
    found = json.loads(run("analyze", "fleet.csv", "--concurrency", "6", "--json").out)
    assert found["exact"] is False
    fleet = sj.Fleet([1.0], [4])
    assert found["throughput"] > sj.analyze(sj.Network(fleet, [0.25], 6)).throughput


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("analyze", "twenty", "--concurrency", "5", "--learning-rate", "-1"), "--constants"),
        (("analyze", "twenty", "--concurrency", "5", "--rounds", "0"), "--constants"),
        (("plan", "twenty", "--concurrency", "5", "--now", "balanced"), "give --page"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(run, arguments, message):
    result = run(*arguments)
    assert result.code == 2
    assert message in result.error
