"""``sojourn simulate`` as a user types it."""

import json
import re

import numpy as np
import pytest

import sojourn as sj

CLUSTERS = ("simulate", "three-clusters", "--concurrency", "30")


def test_theory_beside_simulation(run):
    result = run(*CLUSTERS, "--rounds", "20000", "--seed", "1")
    assert result.code == 0
    assert "slow" in result.out and "staleness" in result.out
    assert "in theory 0.2291 (z " in result.out
    assert "Simulation and theory agree" in result.out


def test_json_equals_the_library(run):
    result = run(*CLUSTERS, "--rounds", "2000", "--replicates", "5", "--seed", "7", "--json")
    printed = json.loads(result.out)
    fleet = sj.built_in_fleet("three-clusters")
    network = sj.Network(fleet, sj.uniform_routing(fleet), 30)
    found = sj.replicate(network, rounds=2000, replicates=5, seed=7)
    assert printed["throughput"]["mean"] == found.throughput.mean
    assert printed["throughput"]["theory"] == sj.analyze(network).throughput
    np.testing.assert_array_equal(
        [row["mean_tasks"]["mean"] for row in printed["classes"]], found.mean_tasks.mean
    )
    assert printed["provenance"]["inputs"]["seed"] == 7


def test_the_transient_is_explained(run):
    result = run(*CLUSTERS, "--rounds", "3000", "--start", "spread")
    said = " ".join(result.out.split())
    assert re.search(r"They differ \(throughput is [+-][\d.]+% from theory,", said)
    assert "--start stationary" in said


def test_a_law_is_given_as_it_is_printed(run):
    size = (*CLUSTERS, "--rounds", "300", "--replicates", "2", "--seed", "1", "--json")
    printed = [
        json.loads(run(*size, *law).out)["throughput"]
        for law in (
            ("--law", "lognormal(sigma=0.5)"),
            ("--law", "lognormal", "--law-parameter", "sigma=0.5"),
        )
    ]
    assert printed[0] == printed[1]


def test_an_experiment_is_no_strategy(run, tmp_path):
    (tmp_path / "e.toml").write_text('fleet = "three-clusters"\ntime = 10\n')
    assert "e.toml: an experiment, not a strategy" in run("simulate", "e.toml").error


def test_a_start_that_the_policy_cannot_have_is_not_advised(run, tmp_path):
    (tmp_path / "fleet.csv").write_text("service_rate,count\n0.01,20\n1,20\n")
    options = ("--policy", "never-queue", "--law", "deterministic", "--rounds", "3030")
    result = run("simulate", "fleet.csv", *options)
    assert "They differ" in result.out
    assert "--start" not in result.out
    assert "leave out more rounds with --warm-up" in " ".join(result.out.split())


def test_a_fleet_has_as_many_tasks_as_clients_by_default(run):
    result = run("simulate", "three-clusters", "--rounds", "300", "--replicates", "2", "--json")
    assert json.loads(result.out)["concurrency"] == 30


def test_another_law_is_explained(run):
    result = run(*CLUSTERS, "--rounds", "20000", "--law", "deterministic")
    assert "The theory is for exponential service times, and these are deterministic" in result.out


def test_another_policy_has_no_theory(run):
    result = run(*CLUSTERS, "--rounds", "1000", "--policy", "idle", "--json")
    printed = json.loads(result.out)
    assert printed["start"] == "spread"
    assert "z" not in printed["throughput"]


def test_out_writes_a_schedule_to_train_on(run, tmp_path):
    result = run(*CLUSTERS, "--rounds", "5000", "--seed", "3", "--out", "schedule")
    assert result.code == 0
    assert "wrote 5,000 rounds" in result.out
    fleet = sj.built_in_fleet("three-clusters")
    network = sj.Network(fleet, sj.uniform_routing(fleet), 30)
    expected = sj.simulate(network, rounds=5000, seed=3, start="stationary")
    np.testing.assert_array_equal(sj.Schedule.read(tmp_path / "schedule").time, expected.time)


def test_a_plan_brings_its_network(run, tmp_path):
    made = run("plan", "three-clusters", "--concurrency", "12", "--out", "plan.toml")
    assert made.code == 0
    result = run("simulate", "plan.toml", "--rounds", "2000", "--json")
    assert result.code == 0
    assert json.loads(result.out)["concurrency"] == 12
    wider = run("simulate", "plan.toml", "--rounds", "2000", "--concurrency", "20", "--json")
    assert json.loads(wider.out)["concurrency"] == 20


def test_trace(run, tmp_path):
    (tmp_path / "trace.csv").write_text("duration\n1\n2\n6\n")
    result = run(*CLUSTERS, "--rounds", "1000", "--trace", "trace.csv", "--json")
    assert json.loads(result.out)["law"] == "trace(3 durations)"


def test_a_trace_says_how_it_is_rescaled_or_gives_the_speeds(run, tmp_path):
    (tmp_path / "one.csv").write_text("count,service_rate\n3,1\n")
    (tmp_path / "trace.csv").write_text("duration\n4\n5\n6\n")
    command = (
        "simulate",
        "one.csv",
        "--concurrency",
        "3",
        "--rounds",
        "2000",
        "--trace",
        "trace.csv",
    )
    said = run(*command)
    assert "durations of the trace are multiplied by 0.2 to have the mean 1/rate" in said.out
    found = json.loads(run(*command, "--trace-speeds", "--json").out)
    assert found["trace"] == {"speeds": "trace", "factors": [1.0]}
    assert found["throughput"]["mean"] < 3 / 5
    alone = run("simulate", "one.csv", "--concurrency", "3", "--trace-speeds")
    assert alone.code == 2
    assert "--trace-speeds goes with --trace FILE" in alone.error


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_timeline_is_drawn(run, tmp_path, suffix):
    result = run(*CLUSTERS, "--time", "40", "--timeline", f"line.{suffix}")
    assert result.code == 0, result.error
    assert f"drew who computes what when into line.{suffix}" in result.out
    assert "Next: sojourn plan three-clusters" in result.error
    drawn = (tmp_path / f"line.{suffix}").read_bytes()
    assert drawn.startswith(b"<svg" if suffix == "svg" else b"\x89PNG")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((*CLUSTERS, "--law", "lognormall"), "did you mean 'lognormal'"),
        ((*CLUSTERS, "--law", "lognormal(2)"), "is written like lognormal(sigma=0.5)"),
        ((*CLUSTERS, "--law-parameter", "sigma"), "NAME=VALUE"),
        ((*CLUSTERS, "--law", "trace"), "--trace FILE"),
        ((*CLUSTERS, "--policy", "idel"), "did you mean 'idle'"),
        ((*CLUSTERS, "--rounds", "0"), "at least 1; it is 0"),
        ((*CLUSTERS, "--time", "-1"), "time must be positive"),
        ((*CLUSTERS, "--trace", "none.csv"), "none.csv: cannot be read"),
        ((*CLUSTERS, "--timeline", "line.gif"), "must end in .svg or .png"),
    ],
)
def test_mistakes_are_one_sentence(run, arguments, words):
    result = run(*arguments)
    assert result.code == 2
    assert result.error.startswith("error: ")
    assert words in result.error
    assert result.error.count("\n") == 1


def test_links_server_and_energy_beside_theory(run, tmp_path):
    fleet = tmp_path / "fleet.csv"
    fleet.write_text(
        "service_rate,count,uplink,downlink,power_compute\n0.5,3,1.5,0.2,2\n2,2,0.1,0,5\n"
    )
    options = ["--concurrency", "6", "--server-rate", "2"]
    result = json.loads(
        run("simulate", str(fleet), *options, "--rounds", "5000", "--seed", "3", "--json").out
    )
    rows = [result["throughput"], result["energy"]]
    rows += [row["mean_tasks"] for row in result["classes"]]
    assert max(abs(row["z"]) for row in rows) < 4
    assert "agree" in result["explanation"]
    theory = json.loads(run("analyze", str(fleet), *options, "--json").out)
    assert theory["throughput"] == pytest.approx(result["throughput"]["theory"])
    assert theory["energy_per_round"]["value"] == pytest.approx(result["energy"]["theory"])
    shown = run("analyze", str(fleet), *options).out
    assert "on uplink" in shown and "the server, 2 updates" in shown


def test_clients_that_come_and_go_keep_hours_and_drift(run, tmp_path):
    (tmp_path / "fleet.csv").write_text(
        "service_rate,count,mean_up,mean_down\n1,4,20,10\n4,2,1,0\n"
    )
    (tmp_path / "hours.csv").write_text("device,from,until\na,0,8\nb,8,24\n")
    (tmp_path / "drift.csv").write_text("time,speed\n100,0.5\n")
    asked = ("simulate", "fleet.csv", "--concurrency", "6", "--rounds", "2000")
    result = run(*asked)
    assert "With intermittent clients the theory is an approximation" in result.out
    assert "tasks of clients that go away wait for them" in result.out
    lost = run(*asked, "--offline", "lose", "--hours", "hours.csv", "--drift", "drift.csv")
    assert "No theory is known for 'routed' with clients that keep hours, drift" in lost.out
    assert "are lost and sent anew" in lost.out


def test_bytes_of_every_client(run):
    found = json.loads(
        run(
            *("simulate", "three-clusters", "--concurrency", "30", "--rounds", "3000"),
            *("--replicates", "4", "--model-bytes", "1e6", "--json"),
        ).out
    )
    sent = 10 * sum(row["mean"] for row in found["bytes"])
    assert sent == pytest.approx(1e6 * found["throughput"]["mean"], rel=1e-12)
    shown = run("simulate", "twenty", "--concurrency", "5", "--rounds", "500", "--model-bytes", "8")
    assert "bytes per time unit that a client receives" in shown.out
    assert run("simulate", "twenty", "--concurrency", "5", "--model-bytes", "-1").code == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency", "0"),
        ("--rounds", "0"),
        ("--time", "0"),
        ("--replicates", "0"),
        ("--work", "0"),
        ("--model-bytes", "0"),
        ("--server-rate", "0"),
    ],
)
def test_zero_is_refused_and_not_taken_for_nothing_given(run, tmp_path, options):
    planned = ("plan", "three-clusters", "--concurrency", "5", "--out", "plan.toml")
    assert run(*planned, "--objective", "throughput").code == 0
    result = run("simulate", "plan.toml", *options, "--json")
    assert result.code == 2, result.out[:300]
    assert result.error.startswith("error: ")
