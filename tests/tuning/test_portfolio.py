"""The candidates that tuning proposes."""

import numpy as np

from sojourn.fleet import Fleet
from sojourn.strategy import Choices, Strategy
from sojourn.tuning.portfolio import (
    BASELINES,
    beside,
    local_work,
    portfolio,
    same_weights,
)
from sojourn.tuning.successive_halving import RUNGS, Halving, Rung

WEIGHTS = np.zeros(10, dtype=np.float32)
EDGE = Fleet(
    [2.0, 5.0, 10.0, 20.0, 50.0],
    counts=[60] * 5,
    downlink=[4.0, 3.5, 3.0, 2.5, 2.0],
    uplink=[8.0, 7.0, 6.0, 5.0, 4.0],
)


def test_local_work_is_proposed_where_tasks_travel():
    assert local_work(Fleet([0.1, 1.0])) == (1,)
    assert local_work(Fleet([1.0, 8.0, 9.0], uplink=[0.0, 0.0, 8.0]))[1:2] == ((1, 1, 9),)
    own = {1 / 8: (3, 7, 11, 19, 38), 1 / 2: (12, 26, 45, 75, 100), 2: (48, 100, 100, 100, 100)}
    assert local_work(EDGE) == (1, 11, own[1 / 8], 45, own[1 / 2], 100, own[2])
    names = [p.name for p in portfolio(EDGE, WEIGHTS) if p.opens]
    assert "FedBuff, 11 local steps" in names
    assert "never-queue, averaged, 12 to 100 local steps" in names


def test_clients_with_longer_journeys_or_more_speed_take_more_steps():
    proposals = {p.name: p.choices for p in portfolio(EDGE, WEIGHTS)}
    choices = proposals["FedBuff, 3 to 38 local steps"]
    assert choices.rule["local-steps"] == [3, 7, 11, 19, 38]
    strategy = Strategy.resolve(choices, Choices(), fleet=EDGE)
    assert strategy.rule.local_steps[:61] == (3,) * 60 + (7,)


def test_every_rule_has_every_option_and_each_level_opens():
    for fleet in (Fleet([0.1, 1.0], counts=[3, 3]), EDGE):
        proposals = portfolio(fleet, WEIGHTS)
        assert len({p.name for p in proposals}) == len(proposals)
        assert {p.name for p in proposals if p.baseline} >= set(BASELINES)
        design = [p for p in proposals if p.levels]
        for factor in ("rule", "server", "local work"):
            opened = {p.levels[factor] for p in design if p.opens}
            assert opened == {p.levels[factor] for p in design}
        work = local_work(fleet)[0]
        for rule in set(same_weights(fleet, work).values()):
            servers = {p.levels["server"] for p in design if p.levels["rule"] == rule}
            assert servers == {"plain", "averaged", "momentum", "adaptive"}


def test_the_best_combination_is_found_beside_those_that_lead():
    """Effects need not add up: the best rule is bad with the server that all combinations open with."""
    names = [(r, s, w) for r in "abc" for s in ("plain", "adaptive") for w in ("1", "10")]
    levels = {
        i: dict(zip(("rule", "server", "work"), own, strict=True)) for i, own in enumerate(names)
    }
    loss = {"a": 0.5, "b": 0.6, "c": 0.9}

    def truth(strategy):
        rule, server, work = names[strategy]
        helped = {("a", "adaptive"): 0.9, ("b", "adaptive"): 0.5, ("c", "adaptive"): 0.2}
        return loss[rule] * helped.get((rule, server), 1.0) * (0.8 if work == "10" else 1.0)

    def run(fraction, candidates, repetition):
        scores = {c: (truth(c.strategy) * fraction**-0.3,) for c in candidates}
        return Rung(fraction, scores, idle=2.3)

    opened = {i: (0.1,) for i in levels if names[i][1] == "plain" and names[i][2] == "1"}
    halving = Halving([], dict(opened))
    while len(halving.rungs) < len(RUNGS):
        halving.advance(run, enter=lambda i: dict.fromkeys(beside(levels, i), (0.1,)))
    assert names[halving.podium()[0].strategy] == ("c", "adaptive", "10")


def test_buffers_of_several_sizes_are_tried_where_they_differ():
    proposals = portfolio(EDGE, WEIGHTS)
    sizes = {p.choices.rule.get("buffer-size") for p in proposals if "FedBuff" in p.name}
    assert sizes == {None, 1, 100}
    opened = {p.name for p in proposals if p.opens}
    assert {"FedBuff, K = 1, 11 local steps", "FedBuff, K = 100, 11 local steps"} < opened
    # One factor apart: another buffer, or another rule with the buffer that it comes with.
    levels = {i: p.levels for i, p in enumerate(proposals)}
    number = {p.name: i for i, p in enumerate(proposals)}
    near = {proposals[i].name for i in beside(levels, number["FedBuff"])}
    assert {"FedBuff, K = 1", "never-queue", "FedBuff, capped", "FedBuff, averaged"} < near
    assert "FedBuff, K = 1, averaged" not in near
    # With local work any buffer is beside a rule without one, as the clients' learning rate is tuned.
    near = {proposals[i].name for i in beside(levels, number["never-queue, 45 local steps"])}
    assert {"FedBuff, 45 local steps", "FedBuff, K = 1, 45 local steps"} < near
    assert "FedBuff, K = 1, averaged, 45 local steps" not in near
    assert "FedBuff, K = 1" not in {
        proposals[i].name for i in beside(levels, number["never-queue"])
    }


def test_rules_that_do_the_same_are_tried_once():
    """Where all are heard equally often, weights against bias are one."""
    fleet = Fleet([0.5, 2.0, 8.0], [4] * 3, downlink=[2.0] * 3, uplink=[2.0] * 3)
    assert set(same_weights(fleet, (1, 4, 16)).values()) == {
        "never-queue",
        "FedBuff",
        "FedAsync",
        "ACE",
    }
    # With one step for all the fast are heard more often; no weight reaches the cap.
    merged = {rule for rule, first in same_weights(fleet, 1).items() if rule != first}
    assert merged == {"never-queue, unbiased"}
    names = [p.name for p in portfolio(fleet, WEIGHTS)]
    assert "never-queue, capped, adaptive" in names
    assert "never-queue, capped, adaptive, 1 to 16 local steps" not in names


def test_a_small_budget_compares_our_rules_with_those_that_frameworks_ship():
    """The last are left out first: of any four there are FedBuff and FedAsync, with the usual local work."""
    for fleet, work in ((Fleet([0.1, 1.0], counts=[3, 3]), ""), (EDGE, ", 11 local steps")):
        first = portfolio(fleet, WEIGHTS)[:4]
        assert {f"FedBuff{work}", f"FedAsync{work}"} < {p.name for p in first}
        assert first[0].name.startswith("never-queue")


def test_adaptive_differences_have_the_servers_learning_rate_tuned():
    proposals = {p.name: p for p in portfolio(EDGE, WEIGHTS, curvature=2.0)}
    for name in ("FedBuff, adaptive", "FedAsync, adaptive", "FedBuff, adaptive, 11 local steps"):
        table = proposals[name].choices.rule
        assert (table["server-learning-rate"], table["local-learning-rate"]) == ("run", 0.25)


def test_fedavg_is_compared_as_it_is_run_in_production():
    (proposal,) = (p for p in portfolio(EDGE, WEIGHTS) if p.name == "FedAvg, over-selected")
    # 30 results of 39 clients; a task of 11 steps takes 11/10 + 9 time units in the median class.
    assert proposal.baseline and proposal.choices.concurrency == 39
    wanted = {"name": "synchronous", "over-selection": 0.3, "deadline": 20.0}
    assert proposal.choices.policy == wanted
