"""The candidates that tuning proposes."""

import numpy as np

from sojourn.fleet import Fleet
from sojourn.strategy import Choices, Strategy
from sojourn.tuning.portfolio import BASELINES, RULES, local_work, portfolio, promising

WEIGHTS = np.zeros(10, dtype=np.float32)
EDGE = Fleet(
    [2.0, 5.0, 10.0, 20.0, 50.0],
    counts=[60] * 5,
    downlink=[4.0, 3.5, 3.0, 2.5, 2.0],
    uplink=[8.0, 7.0, 6.0, 5.0, 4.0],
)


def test_local_work_is_proposed_where_tasks_travel():
    assert local_work(Fleet([0.1, 1.0])) == (1,)
    assert local_work(EDGE) == (1, 11, (3, 7, 11, 19, 38), (12, 26, 45, 75, 100))
    names = [p.name for p in portfolio(EDGE, WEIGHTS, {}) if p.opens]
    assert "FedBuff, 11 local steps" in names
    assert "never-queue, adaptive, 12 to 100 local steps" in names


def test_clients_with_longer_journeys_or_more_speed_take_more_steps():
    proposals = {p.name: p.choices for p in portfolio(EDGE, WEIGHTS, {})}
    choices = proposals["FedBuff, 3 to 38 local steps"]
    assert choices.rule["local-steps"] == [3, 7, 11, 19, 38]
    strategy = Strategy.resolve(choices, Choices(), fleet=EDGE)
    assert strategy.rule.local_steps[:61] == (3,) * 60 + (7,)


def test_every_rule_has_every_option_and_each_level_opens():
    for fleet in (Fleet([0.1, 1.0], counts=[3, 3]), EDGE):
        proposals = portfolio(fleet, WEIGHTS, {})
        assert len({p.name for p in proposals}) == len(proposals)
        assert {p.name for p in proposals if p.baseline} >= set(BASELINES)
        design = [p for p in proposals if p.levels]
        for factor in ("rule", "server", "local work"):
            opened = {p.levels[factor] for p in design if p.opens}
            assert opened >= {p.levels[factor] for p in design} - {
                "ACE",
                "never-queue, unbiased",
                "momentum",
            }
        for rule in RULES:
            servers = {p.levels["server"] for p in design if p.levels["rule"] == rule}
            assert servers == {"plain", "averaged", "momentum", "adaptive"}


def test_the_first_rung_says_which_combinations_to_try_next():
    """Effects add up: the best rule with the best server and amount of work is predicted best."""
    factors = [("a", "b", "c"), ("plain", "adaptive"), ("1", "10")]
    levels = {
        i: {"rule": rule, "server": server, "local work": work}
        for i, (rule, server, work) in enumerate(
            (r, s, w) for r in factors[0] for s in factors[1] for w in factors[2]
        )
    }
    effect = {"a": 0.0, "b": -0.5, "c": 0.3, "plain": 0.0, "adaptive": -0.4, "1": 0.0, "10": -0.7}

    def score(table):
        return float(np.exp(sum(effect[level] for level in table.values())))

    best = min(levels, key=lambda i: score(levels[i]))
    scores = {i: score(levels[i]) for i in (0, 1, 2, 4, 5, 8, 11) if i != best}
    assert promising(levels, scores, 2)[0] == best
    assert promising(levels, {}, 2) == []


def test_a_small_budget_compares_our_rules_with_those_that_frameworks_ship():
    """The last are left out first: of any four there are FedBuff and FedAsync, with the usual local work."""
    for fleet, work in ((Fleet([0.1, 1.0], counts=[3, 3]), ""), (EDGE, ", 11 local steps")):
        first = portfolio(fleet, WEIGHTS, {})[:4]
        assert {f"FedBuff{work}", f"FedAsync{work}"} < {p.name for p in first}
        assert first[0].name.startswith("never-queue")


def test_adaptive_differences_have_the_servers_learning_rate_tuned():
    proposals = {p.name: p for p in portfolio(EDGE, WEIGHTS, {}, curvature=2.0)}
    for name in ("FedBuff, adaptive", "FedAsync, adaptive", "FedBuff, adaptive, 11 local steps"):
        table = proposals[name].choices.rule
        assert (table["server-learning-rate"], table["local-learning-rate"]) == ("run", 0.25)


def test_fedavg_is_compared_as_it_is_run_in_production():
    (proposal,) = (p for p in portfolio(EDGE, WEIGHTS, {}) if p.name == "FedAvg, over-selected")
    # 30 results of 39 clients; a task of 11 steps takes 11/10 + 9 time units in the median class.
    assert proposal.baseline and proposal.choices.concurrency == 39
    wanted = {"name": "synchronous", "over-selection": 0.3, "deadline": 20.0}
    assert proposal.choices.policy == wanted
