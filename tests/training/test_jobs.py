"""How many gradients a run is expected to compute, which progress is measured in."""

import pytest

from sojourn._support.configuration import Table
from sojourn.training.experiment.experiment import experiment_from_table
from sojourn.training.experiment.jobs import Job, expected_gradients, schedule_of


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("policy", ["routed", "never-queue", "idle", "shuffled", "synchronous"])
def test_gradients_are_expected_by_the_policy(policy, steps, tmp_path):
    strategy = {"name": "one", "policy": policy, "rule": "fedbuff", "local-steps": steps}
    if policy == "routed":
        strategy["routing"] = "balanced"
    values = {
        "fleet": "three-clusters",
        "time": 20_000.0,
        "concurrency": 20,
        "learning-rate": 0.05,
        "seeds": 1,
        "strategy": [strategy],
    }
    experiment = experiment_from_table(Table(values, "e.toml"), tmp_path)
    schedule = schedule_of(experiment, experiment.strategies[0], 5, time=experiment.time)
    expected = expected_gradients(experiment, Job(0, 0, (0.05,)))
    # A policy without theory is looked at for a thousand rounds only.
    close = 0.05 if policy in ("routed", "never-queue") else 0.5
    assert schedule.rounds * steps == pytest.approx(expected, rel=close)
