"""``sojourn calibrate`` as a user types it."""

import math
import tomllib

import pytest

from sojourn.fleet import built_in_fleet

EXPERIMENT = """
fleet = "three-clusters"
partition = "labels(2)"
rounds = 100
learning-rate = 0.05
strategies = ["uniform"]
"""


def test_constants_are_measured_written_and_read_by_plan(run, tmp_path):
    (tmp_path / "mine").mkdir()
    built_in_fleet("three-clusters").to_csv(tmp_path / "mine" / "fleet.csv")
    (tmp_path / "mine" / "e.toml").write_text(EXPERIMENT.replace("three-clusters", "fleet.csv"))
    result = run("calibrate", "mine/e.toml", "--out", "c.toml")
    assert result.code == 0, result.error
    assert "Next: sojourn plan mine/fleet.csv --constants c.toml" in result.error
    assert "M squared" in result.out
    assert "where they are a proxy" in result.out
    written = tomllib.loads((tmp_path / "c.toml").read_text())
    constants = written["constants"]
    assert abs(constants["initial-gap"] - math.log(10)) < 0.3
    assert constants["smoothness"] > 0
    assert constants["heterogeneity"] > constants["gradient-noise"] > 0
    assert written["provenance"]["inputs"]["experiment"]["partition"] == "labels(2)"
    planned = run("plan", "mine/fleet.csv", "--constants", "c.toml", "--concurrency", "30")
    assert planned.code == 0, planned.error


@pytest.mark.parametrize(
    ("more", "arguments", "message"),
    [
        ("", ("--seed", "-1"), "seed must be a whole number"),
        ('data = "cifar-10"', ("--data-dir", "."), "data set cifar-10 is not on this machine"),
        ("", ("--data-dir", "nowhere"), "nowhere' is not a folder"),
    ],
)
def test_mistakes_get_a_sentence(run, tmp_path, monkeypatch, more, arguments, message):
    monkeypatch.delenv("SOJOURN_DATA", raising=False)
    (tmp_path / "e.toml").write_text(f"{more}\n{EXPERIMENT}")
    result = run("calibrate", "e.toml", *arguments)
    assert result.code == 2, result.out
    assert message in result.error
    assert "Traceback" not in result.error
    assert not (tmp_path / "constants.toml").exists()
