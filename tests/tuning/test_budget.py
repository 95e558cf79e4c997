"""What tuning is expected to cost on a quiet and on a busy machine."""

import dataclasses
from pathlib import Path

import pytest

from sojourn.errors import InvalidInput
from sojourn.tuning.budget import (
    MOST_EXAMINING,
    Costs,
    confirmation_seconds,
    fitted,
    planned_seconds,
)
from sojourn.tuning.pilots import group_key
from sojourn.tuning.setting import Setting, read_setting

EXPERIMENT = """
fleet = "fleet.csv"
data = "digits"
model = "linear"
time = 10
learning-rate = [0.1, 0.2, 0.3, 0.4, 0.5]
[[strategy]]
name = "a"
rule = "async-sgd"
policy = "never-queue"
[[strategy]]
name = "b"
rule = "fedbuff"
policy = "never-queue"
[[strategy]]
name = "c"
rule = "fedasync"
policy = "never-queue"
"""


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder: Path = tmp_path_factory.mktemp("budget")
    (folder / "fleet.csv").write_text("service_rate,count\n1,3\n5,3\n")
    (folder / "mine.toml").write_text(EXPERIMENT)
    return dataclasses.replace(read_setting(folder / "mine.toml"), building=0.0)


def costs(setting: Setting, slowdown: float) -> Costs:
    keys = [group_key(strategy) for strategy in setting.experiment.strategies]
    return Costs(
        solo=1e-3,
        batched=True,
        evaluation=1e-3,
        together=dict.fromkeys(keys, 1e-3),
        gradients=dict.fromkeys(keys, 1000.0),
        slowdown=slowdown,
    )


def test_a_busy_machine_takes_longer_in_proportion(setting: Setting) -> None:
    quiet, busy = costs(setting, 1.0), costs(setting, 3.0)
    for seconds in (planned_seconds, confirmation_seconds):
        assert seconds(setting, busy, 1) == pytest.approx(3.0 * seconds(setting, quiet, 1))


def test_so_fewer_candidates_fit_into_the_same_budget(setting: Setting) -> None:
    quiet = costs(setting, 1.0)
    budget = planned_seconds(setting, quiet, 1) / (1.0 - MOST_EXAMINING)
    assert len(fitted(setting, quiet, budget, 1)[0].candidates) == 15
    slower = fitted(setting, dataclasses.replace(quiet, slowdown=1.1), budget, 1)[0]
    assert slower.rates == {i: setting.rates[i] for i in (0, 1)}, "with all their learning rates"


def test_a_plan_that_does_not_fit_is_ended_early_and_one_without_an_answer_is_refused(
    setting: Setting,
) -> None:
    quiet = costs(setting, 1.0)
    budget = planned_seconds(setting, quiet, 1)
    short, sentence = fitted(setting, dataclasses.replace(quiet, slowdown=4.0), budget, 1)
    assert len(short.rates) == 2 and "of which the budget leaves" in sentence
    with pytest.raises(InvalidInput, match="too small: a single run takes about 2 min"):
        fitted(setting, dataclasses.replace(quiet, slowdown=100.0), budget, 1)


def test_after_slow_loading_there_is_still_an_answer_from_one_run(setting: Setting) -> None:
    """What is left is too short for two strategies, and then for a single run, which is finished all the same."""
    slow = dataclasses.replace(costs(setting, 1.0), slowdown=4.0)
    for spent in (12.0, 14.9):
        single, sentence = fitted(setting, slow, 15.0, 1, spent)
        assert len(single.candidates) == 1
        assert sentence.startswith("a at learning rate 0.4 alone, reduced to fit the budget")
