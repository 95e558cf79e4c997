"""Results kept: a change that alters a schedule, a plan or a history is noticed and must be meant.

All are those of the version before rules owned their state, save traces by class, which have
streams of their own since, and never-queue (`TO_THE_FINISHER`), whose exponential times have the
kernel without clocks since.
Random streams are the same everywhere, so who finishes when is compared exactly; times and plans go
through logarithms and sums, which systems round differently, and are compared to ten digits.
Where a change is meant, put in what the failing test shows, and say so in the changelog.
"""

import hashlib

import numpy as np
import pytest
import torch

import sojourn as sj
from tests.training.small import small_problem

FLEET = sj.Fleet([0.3, 1.0, 4.0], counts=[2, 5, 3], names=["slow", "middle", "fast"])
OBSERVED = "class,duration\nslow,1\nslow,4\nmiddle,2\nmiddle,2.5\nmiddle,9\nfast,1\n"
OWN_START = [0, 3, 0, 0, 1, 0, 0, 0, 0, 2]
TO_THE_FINISHER = sj.rules.Ringmaster().policy

# What is asked of `simulate`; the digest of who finishes when; the time of the last round.
SCHEDULES = [
    ({}, "da5583928e5062aa", 463.597567169),
    ({"law": "deterministic"}, "cb019550bbde71b4", 373.916666667),
    ({"law": "lognormal"}, "c094ce6bf2b93f4b", 424.796806545),
    ({"law": "gamma"}, "bfa156fd26d2a4b1", 478.489395454),
    ({"law": "erlang"}, "57649afe5a6fe504", 411.137311989),
    ({"law": "hyperexponential"}, "d9cf795319ce5693", 494.942110524),
    ({"law": "weibull"}, "eb0efdf1d433193f", 589.352072634),
    ({"law": "pareto"}, "3251bb90bec24e8a", 405.155764311),
    # Of a trace by class every class draws from a stream of its own.
    ({"law": "trace"}, "04206c03332c9e31", 391.527777778),
    ({"policy": "idle"}, "5c3d49332bebc02a", 284.526547258),
    ({"policy": "shuffled"}, "8bc32c59b9f94e1a", 799.581900917),
    ({"policy": "synchronous"}, "069655fe660d0ac3", 1473.76258586),
    # With fewer tasks than clients somebody rests, in turn; with more, tasks beyond n are kept back.
    ({"policy": TO_THE_FINISHER, "concurrency": 6}, "ce39719ec3ca7f51", 284.134636784),
    ({"policy": TO_THE_FINISHER, "concurrency": 10}, "dba5494f71fda7bc", 119.793011288),
    ({"policy": TO_THE_FINISHER, "concurrency": 14}, "dba5494f71fda7bc", 119.793011288),
    ({"policy": "idle", "law": "lognormal", "work": 2.0}, "b1bb6e21617bf8cd", 559.603167308),
    (
        {"policy": "synchronous", "law": "weibull", "concurrency": 10},
        "c14a93b23bc18900",
        1708.4859302,
    ),
    ({"policy": "shuffled", "law": "trace", "concurrency": 14}, "7ceb6353c9df329e", 664.472222222),
    ({"start": "stationary"}, "711fe1c70dc068b3", 476.680917142),
    ({"start": OWN_START}, "07cea2272bb8dfc0", 463.414230365),
    ({"start": "stationary", "law": "gamma", "concurrency": 40}, "5a4adb9bc25f9e9c", 305.048140653),
    ({"work": 3.0, "concurrency": 40}, "6e60d5928eb80c1d", 775.687361983),
    ({"work": 0.5, "law": "erlang"}, "57649afe5a6fe504", 205.568655994),
    ({"concurrency": 1}, "ed3760c6402b9b9e", 1706.73532333),
    ({"seed": 8}, "e05ea7c145e76c9b", 542.515020093),
]


def _id(options):
    return " ".join(str(value) for value in options.values()) or "as it comes"


def _digest(schedule):
    seen = hashlib.sha256()
    for name in ("client", "dispatched", "pending_client", "pending_dispatched"):
        seen.update(np.asarray(getattr(schedule, name), dtype="<i8").tobytes())
    return seen.hexdigest()[:16]


@pytest.mark.parametrize(
    "options, digest, end", SCHEDULES, ids=[_id(options) for options, *_ in SCHEDULES]
)
def test_schedules(options, digest, end, tmp_path):
    asked = {"seed": 7, **options}
    routing = sj.square_root_routing(FLEET)
    network = sj.Network(FLEET, routing, asked.pop("concurrency", 6))
    if asked.get("law") == "trace":
        (tmp_path / "trace.csv").write_text(OBSERVED)
        asked["law"] = sj.read_trace(tmp_path / "trace.csv", FLEET)
    schedule = sj.simulate(network, rounds=2000, **asked)
    assert (_digest(schedule), float(schedule.time[-1])) == (digest, pytest.approx(end, rel=1e-10))


CONSTANTS = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
FAST = sj.LearningConstants(2.3, 10.0, 1.0, 1.0)
THREE, TWENTY = sj.built_in_fleet("three-clusters"), sj.built_in_fleet("twenty")

# Fleet, objective, concurrency (None: the best); concurrency, learning rate and value found, and the
# share of each class of the fleet.
PLANS = [
    (
        THREE,
        sj.PerRound(CONSTANTS, 0.01, 0),
        30,
        30,
        0.01,
        1503.97010965,
        [0.5621827405, 0.2237839926, 0.2140332669],
    ),
    (
        THREE,
        sj.PerTime(CONSTANTS, 0.01, 0),
        30,
        30,
        0.01,
        1266.5527956,
        [0.02260158504, 0.2622087485, 0.7151896664],
    ),
    (
        THREE,
        sj.PerTime(CONSTANTS, 0.01, 0),
        None,
        8,
        0.01,
        759.127781863,
        [0.008757641711, 0.01505644861, 0.9761859097],
    ),
    (
        THREE,
        sj.TimeToAccuracy(FAST, 0.5),
        None,
        7,
        0.000203577686785,
        538735.753203,
        [0.06315983187, 0.2148403151, 0.721999853],
    ),
    (
        THREE,
        sj.TimeToAccuracy(FAST, 0.5, guaranteed=True),
        5,
        5,
        3.55938386663e-05,
        8185381.25424,
        [0.2584453938, 0.3207923902, 0.420762216],
    ),
    (
        THREE,
        sj.TimeBudget(FAST, 5000.0),
        None,
        3,
        0.00336898292866,
        1.02280845145,
        [0.09180723489, 0.2250392229, 0.6831535422],
    ),
    (
        THREE,
        sj.Throughput(),
        50,
        50,
        None,
        8.67454457794,
        [6.994679118e-16, 0.04738861161, 0.9526113884],
    ),
    (
        FLEET,
        sj.PerRound(CONSTANTS, 0.01, 0),
        40,
        40,
        0.01,
        1505.55338118,
        [0.5497614281, 0.2899987319, 0.16023984],
    ),
    (
        FLEET,
        sj.TimeToAccuracy(CONSTANTS, 0.3),
        None,
        28,
        4.02936891026e-05,
        1583766.23366,
        [0.04201421377, 0.3234117258, 0.6345740604],
    ),
    (
        TWENTY,
        sj.PerRound(CONSTANTS, None, 1000),
        40,
        40,
        0.00474627158313,
        5.42729019713,
        [0.349245559, 0.03476090038, 0.03470173904, 0.03464300877],
    ),
    (
        TWENTY,
        sj.TimeBudget(CONSTANTS, 300.0),
        8,
        8,
        0.00484615850896,
        2.85697340393,
        [0.04731757033, 0.04759077658, 0.04786547181, 0.04814166511],
    ),
]


@pytest.mark.parametrize(
    "fleet, objective, concurrency, found, learning_rate, value, shares",
    PLANS,
    ids=[f"{row[1].name} {row[0].size} {row[2]}" for row in PLANS],
)
def test_plans(fleet, objective, concurrency, found, learning_rate, value, shares):
    plan = sj.plan(fleet, objective, concurrency=concurrency)
    assert plan.concurrency == found
    # At an optimum the value is flat: it is found to more digits than where it is found.
    assert plan.value == pytest.approx(value, rel=1e-10)
    assert plan.learning_rate == (learning_rate and pytest.approx(learning_rate, rel=1e-7))
    firsts = np.cumsum(fleet.counts) - fleet.counts
    by_class = np.add.reduceat(plan.client_routing, firsts)
    np.testing.assert_allclose(by_class[: len(shares)], shares, rtol=1e-6, atol=1e-12)


# Rule, policy, concurrency; versions made, last test loss, mean staleness of what was last used.
HISTORIES = [
    (sj.rules.GeneralizedAsyncSGD(), "routed", 14, 400, 0.188723523026, 11.31),
    (sj.rules.AsyncSGD(), "routed", 14, 400, 0.175350435103, 11.31),
    (sj.rules.AsyncSGD(), TO_THE_FINISHER, 10, 400, 0.156851851361, 9.11),
    (sj.rules.ShuffledAsyncSGD(), "shuffled", 14, 400, 0.155625998623, 12.64),
    (sj.rules.DelayAdaptive(), "routed", 14, 400, 0.170920470305, 11.31),
    (sj.rules.Ringmaster(max_staleness=5), TO_THE_FINISHER, 10, 278, 0.197157882825, 1.16901408451),
    (sj.rules.Ringmaster(), TO_THE_FINISHER, 10, 317, 0.179720994038, 1.88607594937),
    (sj.rules.MinibatchSGD(), "synchronous", 5, 80, 0.675362787536, 0),
    (sj.rules.FedAsync(local_steps=2), "idle", 6, 400, 0.366297836078, 4.96),
    (sj.rules.FedAsync(decay="hinge", b=3.0, mixing=0.9), "idle", 6, 400, 0.360265353054, 4.96),
    (sj.rules.FedAsync(decay="constant"), TO_THE_FINISHER, 10, 400, 0.894841776255, 9.11),
    (sj.rules.FedBuff(buffer_size=3, local_steps=2), "idle", 6, 133, 0.28484433888, 1.67),
    (
        sj.rules.FedBuff(
            buffer_size=4, server_learning_rate=0.5, proximal=0.1, local_learning_rate=0.2
        ),
        "idle",
        6,
        100,
        0.357378375841,
        1.24,
    ),
    (sj.rules.FedAvg(local_steps=3), "synchronous", 5, 80, 0.260560748819, 0),
]


@pytest.mark.parametrize(
    "rule, policy, concurrency, updates, loss, staleness",
    HISTORIES,
    ids=[f"{rule!r} {policy}" for rule, policy, *_ in HISTORIES],
)
def test_histories(rule, policy, concurrency, updates, loss, staleness):
    network = sj.Network(FLEET, sj.square_root_routing(FLEET), concurrency)
    schedule = sj.simulate(network, rounds=400, policy=policy, work=rule.local_steps, seed=5)
    problem = small_problem(clients=FLEET.size, dtype=torch.float64)
    options = {"learning_rate": 0.05, "seed": 9, "evaluate_every": 100, "batched": False}
    history = sj.replay(schedule, problem, rule, **options)
    assert history.updates[-1] == updates
    assert history.test_loss[-1] == pytest.approx(loss, rel=1e-10)
    assert history.staleness[-1] == pytest.approx(staleness, rel=1e-10)
