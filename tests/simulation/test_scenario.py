"""A scenario is a frozen value: it is replaced, compared, hashed, written and read back."""

import inspect
import json
import typing
from dataclasses import fields, replace

import pytest

import sojourn as sj
from sojourn.errors import InvalidInput
from sojourn.fleet.calendars import Drift, Hours
from sojourn.simulation.scenario import Scenario, ScenarioParts
from sojourn.simulation.simulate import replicate, simulate

SCENARIOS = [
    Scenario(),
    Scenario(law=["lognormal", {"name": "gamma", "shape": 3.0}], policy="never-queue", work=2.0),
    Scenario(policy={"name": "restart", "max-staleness": 4}, start=[1, 0, 2], paired=True),
    Scenario(
        link_law="deterministic",
        server_law="erlang",
        offline="lose",
        hours=Hours([[(0, 8)], [(9, 17)]], period=24),
        drift=Drift([[(5.0, 0.5)]]),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=repr)
def test_one_part_is_replaced_and_all_others_stay(scenario):
    changed = replace(scenario, work=3.0)
    assert changed.work == 3.0 and changed != scenario
    assert replace(changed, work=scenario.work) == scenario
    assert replace(scenario, law="pareto").law == (sj.Law("pareto"),)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=repr)
def test_equal_scenarios_have_equal_hashes_and_survive_a_file(scenario):
    read = Scenario.from_table(json.loads(json.dumps(scenario.to_table())))
    assert read == scenario and hash(read) == hash(scenario)


def test_every_part_is_an_argument_of_simulate_and_replicate():
    parts = {field.name for field in fields(Scenario)}
    assert parts == set(ScenarioParts.__annotations__)
    for function in (simulate, replicate):
        assert typing.get_type_hints(function)["parts"] == typing.Unpack[ScenarioParts]
    assert parts <= set(inspect.signature(Scenario).parameters)
    assert all(f"``{name}``" in (Scenario.__doc__ or "") for name in parts)


def test_a_part_that_does_not_exist_is_refused():
    network = sj.Network(sj.Fleet([1.0, 2.0]), [0.5, 0.5], 2)
    for function in (simulate, replicate):
        with pytest.raises(TypeError, match="polcy"):
            function(network, rounds=10, polcy="idle")


def test_a_scenario_and_its_parts_are_not_both_taken():
    network = sj.Network(sj.Fleet([1.0, 2.0]), [0.5, 0.5], 2)
    with pytest.raises(InvalidInput, match=r"its parts \(work\), not both"):
        simulate(network, Scenario(), rounds=10, work=2.0)
    with pytest.raises(InvalidInput, match=r"its parts \(policy\), not both"):
        replicate(network, Scenario(), rounds=10, policy="idle")


@pytest.mark.parametrize(
    "law",
    ["lognormal", {"name": "lognormal", "sigma": 0.5}, ["gamma", "exponential"], sj.Law("erlang")],
    ids=str,
)
def test_analyze_takes_a_law_as_simulate_does(law):
    network = sj.Network(sj.Fleet([1.0, 2.0]), [0.4, 0.6], 3)
    laws = simulate(network, rounds=1, law=law).scenario.law
    assert sj.analyze(network, law=law).throughput == sj.analyze(network, law=laws).throughput
    assert sj.analyze(network, server_law="gamma").throughput == pytest.approx(
        sj.analyze(network).throughput
    )


@pytest.mark.parametrize("work", [4, (1, 4, 16)])
def test_shares_count_the_work_of_a_task_beside_its_journey(work):
    """Of tasks that travel for 4 and compute for work/rate, whoever is sooner back is heard more often."""
    fleet = sj.Fleet([0.5, 2.0, 8.0], downlink=[2.0] * 3, uplink=[2.0] * 3)
    network = sj.Network(fleet, [1 / 3] * 3, 3)
    scenario = Scenario(policy="never-queue", work=work)
    shares = scenario.shares(network)
    times = 4.0 + scenario.client_work(network) / fleet.service_rates
    assert shares == pytest.approx(1 / times / (1 / times).sum())
    client = simulate(network, scenario, rounds=20_000, seed=1).client
    heard = [float((client == i).mean()) for i in range(3)]
    assert heard == pytest.approx(shares.tolist(), abs=0.01)
    patient = Scenario(policy={"name": "never-queue", "patience": 2.0}, work=work)
    assert patient.shares(network) is None
