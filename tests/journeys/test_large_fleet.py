"""A hundred thousand devices with columns of their owner's, from their file to a table of plans."""

import csv
from contextlib import contextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

import sojourn as sj
from sojourn.cli import app, plan as plan_command
from sojourn.planning.search import descent

DEVICES = 100_000


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    """The file of the fleet."""
    return write_devices(tmp_path_factory, DEVICES)


def write_devices(tmp_path_factory, number):
    rates = np.exp(np.random.default_rng(0).normal(0.0, 1.0, number))
    path = tmp_path_factory.mktemp("large") / "devices.csv"
    lines = ["name,service_rate,region,battery"]
    lines += [
        f"phone-{i:06d},{rate!r},{'eu' if i % 3 else 'us'},{i % 101}"
        for i, rate in enumerate(rates.tolist())
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def sojourn(*arguments):
    done = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_a_joint_plan_of_a_grouped_fleet_reaches_every_device(devices, tmp_path, monkeypatch):
    evaluations = 0
    evaluate = descent.OverRoutings.__call__

    def counted(self, theta):
        nonlocal evaluations
        evaluations += 1
        return evaluate(self, theta)

    monkeypatch.setattr(descent.OverRoutings, "__call__", counted)
    table, plan = tmp_path / "table.csv", tmp_path / "plan.toml"
    printed = sojourn(
        *("plan", str(devices), "--group", "0.1", "--constants", "default", "--sort", "routing"),
        *("--clients", str(table), "--out", str(plan)),
    )
    assert "median" in printed and "95 %" in printed
    assert "…" not in printed
    # Descents that do not see how unequal the classes are took 33,000.
    assert evaluations < 6000
    found = sj.Plan.read(plan)
    assert found.fleet.size == DEVICES
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["name", "service_rate", "region", "battery", "routing"]
    assert [row["name"] for row in rows[:2]] == ["phone-000000", "phone-000001"]
    assert [row["region"] for row in rows[:3]] == ["us", "eu", "eu"]
    assert sum(float(row["routing"]) for row in rows) == pytest.approx(1.0, rel=1e-9)
    rates = np.array([float(row["service_rate"]) for row in rows])
    routing = np.array([float(row["routing"]) for row in rows])
    assert (np.diff(routing[np.argsort(rates)]) >= -1e-12).all()


@pytest.mark.parametrize("number", [10_000, pytest.param(DEVICES, marks=pytest.mark.slow)])
def test_an_analysis_tells_quantiles_and_writes_every_device(tmp_path_factory, tmp_path, number):
    devices, table = write_devices(tmp_path_factory, number), tmp_path / "table.csv"
    arguments = ("--concurrency", "500", "--group", "0.1", "--sort", "staleness")
    printed = sojourn("analyze", str(devices), *arguments, "--out", str(table))
    assert "median" in printed and "… " not in printed
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == number
    assert rows[1]["battery"] == "1"
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1.0, rel=1e-9)
    stalest = max(rows, key=lambda row: float(row["staleness"]))
    assert float(stalest["service_rate"]) == min(float(row["service_rate"]) for row in rows)


def test_an_interrupted_plan_is_the_best_until_then_and_is_written(tmp_path, monkeypatch):
    (tmp_path / "fleet.csv").write_text("name,service_rate,site\na,1,here\nb,3,there\n")
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def impatient(what):
        taken = []

        def step(name):
            taken.append(name)
            if len(taken) == 4:
                raise KeyboardInterrupt

        yield step

    monkeypatch.setattr(plan_command, "steps", impatient)
    printed = sojourn("plan", "fleet.csv", "--constants", "default", "--out", "plan.toml")
    assert "this is the best plan until then" in printed
    assert sj.Plan.read("plan.toml").provenance["inputs"]["interrupted"] is True


def test_names_are_printed_in_full_and_files_written_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "a phone with a rather long name in the attic of the house number " + "9" * 40
    (tmp_path / "fleet.csv").write_text(f"name,service_rate\n{name},1\nb,3\n")
    for command in (("analyze", "--concurrency", "3"), ("plan",)):
        printed = sojourn(command[0], "fleet.csv", *command[1:]).splitlines()
        (first,) = [k for k, line in enumerate(printed) if line.startswith("a phone")]
        width = printed[first - 1].index("clients")
        column = " ".join(line[:width].strip() for line in printed[first : first + 5])
        assert f"{column} ".startswith(f"{name} b "), "a name wider than its column is wrapped"
    order = []
    monkeypatch.setattr(plan_command, "show", lambda *given: order.append("printed"))
    write = sj.Plan.write
    monkeypatch.setattr(
        sj.Plan, "write", lambda self, *given: (order.append("written"), write(self, *given))
    )
    sojourn("plan", "fleet.csv", "--out", "plan.toml")
    assert order == ["written", "printed"]


def test_a_table_may_be_asked_for_by_its_ending(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.csv").write_text("service_rate,count,routing\n1,2,bus\n3,1,tram\n")
    sojourn("plan", "fleet.csv", "--out", "table.csv")
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["class 1 1", "class 1 2", "class 2"]
    assert [row["routing (given)"] for row in rows] == ["bus", "bus", "tram"]
    assert sum(float(row["routing"]) for row in rows) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "arguments", [("plan", "twenty"), ("analyze", "twenty", "--concurrency", "3")]
)
def test_an_unknown_column_to_sort_by_is_named(arguments):
    done = CliRunner().invoke(app, [*arguments, "--sort", "spead"])
    assert done.exit_code != 0
    assert "unknown column 'spead'" in str(done.exception) + done.output
