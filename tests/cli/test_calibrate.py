"""``sojourn calibrate`` as a user types it."""

import math
import tomllib

EXPERIMENT = """
fleet = "three-clusters"
partition = "labels(2)"
rounds = 100
learning-rate = 0.05
strategies = ["uniform"]
"""


def test_constants_are_measured_written_and_read_by_plan(run, tmp_path):
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    result = run("calibrate", "e.toml", "--out", "c.toml")
    assert result.code == 0, result.error
    assert "M squared" in result.out
    assert "where they are a proxy" in result.out
    written = tomllib.loads((tmp_path / "c.toml").read_text())
    constants = written["constants"]
    assert abs(constants["initial-gap"] - math.log(10)) < 0.3
    assert constants["smoothness"] > 0
    assert constants["heterogeneity"] > constants["gradient-noise"] > 0
    assert written["provenance"]["inputs"]["experiment"]["partition"] == "labels(2)"
    planned = run("plan", "three-clusters", "--constants", "c.toml", "--concurrency", "30")
    assert planned.code == 0, planned.error
