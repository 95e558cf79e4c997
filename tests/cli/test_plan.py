"""``sojourn plan`` as a user types it."""

import csv
import json

import pytest

import sojourn as sj


def test_without_constants_queueing_is_measured_against_the_floor(run):
    result = run("plan", "three-clusters")
    assert result.code == 0
    words = " ".join(result.out.split())
    assert words.startswith(
        "Never queue, 30 tasks in flight It makes 48 times as many updates per time unit"
    )
    assert "never-queue 11.1 1,109 1.233 37" in words
    assert (
        "Never queueing has the least noise of any policy that lets tasks finish, with 30 tasks in "
        "flight (1.233, the floor) at a staleness of 37; the best routing has 1.93 (1.57 times) at 107 (2.9 times)."
    ) in words
    assert "learning rate" not in words
    assert result.error.splitlines()[-1].startswith("Next: sojourn explore three-clusters  #")


def test_json_without_constants_has_the_same_facts(run):
    printed = json.loads(run("plan", "three-clusters", "--json").out)
    assert (printed["objective"], printed["concurrency"]) == ("noise-rate", 30)
    assert printed["learning_rate"] is None
    never, plan = printed["comparison"]["never-queue"], printed["comparison"]["plan"]
    assert printed["noise_floor"] == never["noise_rate"] == pytest.approx(1.2333, rel=1e-4)
    assert plan["value"] == printed["value"] == pytest.approx(plan["noise_rate"], rel=1e-12)
    cost = printed["queueing_cost"]
    assert cost["noise"] == pytest.approx(plan["noise_rate"] / never["noise_rate"], rel=1e-12)
    assert cost["staleness"] == pytest.approx(106.92 / 37, rel=1e-3)
    assert printed["warnings"] == []


def test_before_and_after(run, tmp_path):
    arguments = ("--constants", "default", "--concurrency", "30", "--out", "plan.toml")
    result = run("plan", "three-clusters", *arguments)
    assert result.code == 0
    words = (
        "uniform",
        "balanced",
        "square-root",
        "never-queue",
        "best routing",
        "Why:",
        "the floor",
    )
    for word in (*words, "this plan has", "A proxy, not a guarantee"):
        assert word in result.out
    assert "Next: sojourn simulate plan.toml  # checks the theory" in result.error
    assert sj.Plan.read(tmp_path / "plan.toml").concurrency == 30


def test_a_plan_of_least_noise_is_read_back(run, tmp_path):
    run("plan", "three-clusters", "--concurrency", "5", "--out", "plan.toml")
    plan = sj.Plan.read(tmp_path / "plan.toml")
    assert plan.objective == sj.NoiseRate()
    assert plan.concurrency == 5


def test_a_plan_far_from_what_trains_is_told(run, tmp_path):
    (tmp_path / "fleet.csv").write_text("service_rate,count\n1,6\n2,6\n")
    arguments = ("--constants", "100,0.1,10,2.3", "--squared-gradient-norm", "0.01", "--json")
    printed = json.loads(run("plan", "fleet.csv", *arguments, "--concurrency", "1").out)
    few, small = printed["warnings"]
    assert few.startswith("1 task in flight brings 12 clients")
    assert "times that of never queueing" in few
    assert "become unstable at m = 1: try larger ones" in small


def test_every_number_comes_from_the_plan_file(run, tmp_path):
    arguments = ("--objective", "per-time", "--rounds", "0", "--learning-rate", "0.01")
    fixed = ("--constants", "1,3,10,15", "--concurrency", "30", "--out", "plan.toml", "--json")
    result = run("plan", "three-clusters", *arguments, *fixed)
    printed = json.loads(result.out)
    plan = sj.Plan.read(tmp_path / "plan.toml")
    assert printed["value"] == pytest.approx(plan.value, rel=1e-12)
    for name, row in plan.comparison().items():
        for field, value in printed["comparison"][name].items():
            assert value == getattr(row, field)
    assert printed["value"] <= 1266.5528 * (1 + 1e-6)


def test_groups_map_back_to_every_client(run, tmp_path):
    rows = "".join(f"{1 + i / 1000},device-{i}\n" for i in range(300))
    (tmp_path / "fleet.csv").write_text("service_rate,name\n" + rows)
    result = run(
        *("plan", "fleet.csv", "--group", "0.05", "--concurrency", "50"),
        *("--clients", "clients.csv", "--constants", "1,1,1,2"),
    )
    assert result.code == 0
    assert "300 speeds taken as" in result.out
    with (tmp_path / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert [row["name"] for row in clients] == [f"device-{i}" for i in range(300)]
    assert sum(float(row["routing"]) for row in clients) == pytest.approx(1.0)


def test_constants_from_a_calibration_file(run, tmp_path):
    (tmp_path / "constants.toml").write_text(
        "[constants]\ninitial-gap = 2\nsmoothness = 1\ngradient-noise = 1\nheterogeneity = 1\n"
    )
    result = run("plan", "twenty", "--constants", "constants.toml", "--concurrency", "5", "--json")
    assert result.code == 0


def test_figure(run, tmp_path):
    pytest.importorskip("matplotlib")
    result = run("plan", "three-clusters", "--concurrency", "5", "--figure", "frontier.png")
    assert result.code == 0
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_page(run, tmp_path):
    pytest.importorskip("plotly")
    result = run("plan", "three-clusters", "--page", "plan.html", "--now", "balanced")
    assert result.code == 0, result.error
    assert "written: plan.html" in result.out
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "which has 2 times its noise rate; the best routing has 1.6 times." in page
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]
    assert "a page ends in .html" in run("plan", "three-clusters", "--page", "plan.pdf").error
    assert run("plan", "three-clusters", "--page", "p.html", "--now", "square").code == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--objective", "per-tme"), "did you mean 'per-time'"),
        (("--objective", "per-time", "--constants", "default"), "needs --rounds"),
        (("--objective", "time-budget", "--constants", "default"), "needs --time"),
        (("--objective", "per-time", "--rounds", "9"), "needs --constants"),
        (("--squared-gradient-norm", "0.5"), "time-to-accuracy needs --constants"),
        (("--learning-rate", "0.1"), "does not depend on a learning rate"),
        (("--objective", "throughput"), "has no best concurrency"),
        (
            ("--squared-gradient-norm", "-1", "--constants", "default"),
            "squared_gradient_norm must be positive",
        ),
        (
            ("--constants", "default", "--squared-gradient-norm", "0.001", "--learning-rate", "1"),
            "the least that any routing attains",
        ),
        (("--group", "-1"), "tolerance must be positive"),
        (("--constants", "nothing.toml"), "cannot be read"),
    ],
)
def test_mistakes_get_a_sentence(run, tmp_path, arguments, message):
    result = run("plan", "three-clusters", *arguments, "--out", "plan.toml")
    assert result.code == 2
    assert message in result.error
    assert "Traceback" not in result.error
    assert not (tmp_path / "plan.toml").exists()


def test_help_teaches_what_a_fleet_is(run):
    for command in ("plan", "analyze"):
        help = run(command, "--help").out
        assert "service_rate" in help
        assert "three-clusters" in help


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--objective", "time-budget", "--time", "9", "--rounds", "9"), "--rounds goes with"),
        (("--objective", "per-time", "--rounds", "9", "--time", "9"), "--time goes with"),
        (("--objective", "per-time", "--rounds", "9", "--guaranteed"), "--guaranteed goes with"),
        (
            ("--objective", "throughput", "--squared-gradient-norm", "1"),
            "--squared-gradient-norm goes with",
        ),
    ],
)
def test_options_of_another_objective_are_refused(run, arguments, message):
    result = run("plan", "three-clusters", "--concurrency", "5", *arguments)
    assert result.code == 2
    assert message in result.error


def test_why_compares_what_was_asked_for(run):
    fixed = ("plan", "three-clusters", "--concurrency", "30")
    limited = ("--objective", "time-budget", "--time", "1000", "--constants", "default")
    budget = run(*fixed, *limited).out
    assert "lower than under balanced routing" in " ".join(budget.split())
    fast = run(*fixed, "--objective", "throughput").out
    assert "37.0% higher than under balanced routing" in " ".join(fast.split())
    assert "whoever is slow is left out" in " ".join(fast.split())
    same = run(*fixed, *limited, "--routing", "balanced").out
    assert "that of balanced routing" in " ".join(same.split())


def test_the_plan_file_tells_its_inputs(run, tmp_path):
    run("plan", "twenty", *("--concurrency", "9", "--routing", "balanced", "--out", "plan.toml"))
    inputs = sj.Plan.read(tmp_path / "plan.toml").provenance["inputs"]
    assert inputs == {"fleet": "twenty", "concurrency": 9, "routing": "balanced"}


def test_energy_objectives_and_server(run, tmp_path):
    fleet = tmp_path / "fleet.csv"
    fleet.write_text(
        "service_rate,count,uplink,power_compute,power_idle\n0.5,3,1.5,2,0.1\n2,2,0,5,0.1\n"
    )
    energy, both = (
        json.loads(run("plan", str(fleet), "--json", "--server-rate", "3", *options).out)
        for options in (
            (
                "--constants",
                "default",
                "--objective",
                "energy",
                "--out",
                str(tmp_path / "plan.toml"),
            ),
            ("--constants", "default", "--objective", "time-and-energy", "--rho", "0.2"),
        )
    )
    assert energy["objective"] == "energy"
    assert both["value"] >= 1.0
    assert both["concurrency"] >= energy["concurrency"]
    assert "server-rate = 3.0" in (tmp_path / "plan.toml").read_text()
    refused = run("plan", str(fleet), "--rho", "0.2")
    assert "--rho goes with the objective time-and-energy" in refused.error


def test_another_form_of_the_bound_and_a_buffer(run):
    asked = ("--constants", "1,3,10,15", "--objective", "per-round", "--rounds", "1000")
    given = ("--concurrency", "10", "--routing", "uniform", "--learning-rate", "0.1")
    result = run("plan", "three-clusters", *asked, *given, "--bound", "tight", "--buffer", "best")
    assert "The server collects 20 updates for each that it makes." in " ".join(result.out.split())
    refused = run("plan", "three-clusters", "--buffer", "3")
    assert refused.code == 2
    assert "go with objectives about the bounds; this one is noise-rate" in refused.error
