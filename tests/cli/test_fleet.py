"""``sojourn fleet estimate`` as a user types it."""

import numpy as np

import sojourn as sj


def test_estimate_writes_a_fleet_that_plans(run, tmp_path):
    random = np.random.default_rng(1)
    rows = [
        f"phone {i},{duration!r}"
        for i in range(6)
        for duration in random.exponential(1.0 + 9.0 * (i % 2), 60).tolist()
    ]
    (tmp_path / "log.csv").write_text("device,duration\n" + "\n".join(rows) + "\n")
    result = run("fleet", "estimate", "log.csv", "--out", "fleet.csv")
    assert result.code == 0
    assert "exponential" in result.out and "95 % interval" in result.out
    assert sj.Fleet.from_csv(tmp_path / "fleet.csv").counts.tolist() == [3, 3]
    wrong = run("fleet", "estimate")
    assert wrong.code == 2
    assert "either a log" in wrong.error
