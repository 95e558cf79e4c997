"""Plans for fleets with links, powers and a server that takes time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sojourn.fleet import Fleet, Network, named_routing
from sojourn.planning import Plan, energy_frontier, frontier, plan, sensitivity, time_and_energy
from sojourn.planning.objectives import OBJECTIVES, Energy, PerTime, TimeToAccuracy
from sojourn.planning.search import group_clients, optimize_concurrency, optimize_routing
from sojourn.theory.bounds import LearningConstants

CONSTANTS = LearningConstants(initial_gap=2.3, smoothness=10, gradient_noise=1, heterogeneity=1)
FIVE_TYPES = Fleet(
    [0.1, 0.3, 1.0, 3.0, 10.0],
    counts=[20] * 5,
    downlink=[1.0, 0.5, 2.0, 0.2, 0.1],
    uplink=[4.0, 2.0, 3.0, 0.5, 0.4],
    power_compute=[1.0, 2.0, 3.0, 6.0, 10.0],
    power_uplink=[1.0] * 5,
    power_downlink=[0.3] * 5,
    power_idle=[0.01] * 5,
)
SMALL = Fleet([0.2, 1.0, 5.0], counts=[3, 2, 2], uplink=[2.0, 0.5, 0.1], power_compute=[1, 2, 9])
TIME = TimeToAccuracy(CONSTANTS, 0.5)


def test_server_rate_reaches_every_network() -> None:
    objective = PerTime(CONSTANTS, 0.01, 100)
    for found in (
        optimize_routing(SMALL, 6, objective, server_rate=1.5),
        optimize_routing(SMALL, 6, objective, server_rate=1.5, method="adam"),
        optimize_concurrency(SMALL, objective, server_rate=1.5),
        optimize_concurrency(SMALL, objective, routing="uniform", server_rate=1.5),
    ):
        assert found.network.server_rate == 1.5
        assert found.value == pytest.approx(objective.evaluate(found.network).value)
    curve = frontier(SMALL, 6, points=3, server_rate=1.5)
    assert {network.server_rate for network in curve.networks} == {1.5}
    assert curve.throughput.max() < 1.5


def test_plan_with_a_slow_server_keeps_fewer_tasks_in_flight_and_beats_the_one_without() -> None:
    slow = plan(SMALL, TIME, server_rate=1.0)
    blind = plan(SMALL, TIME)
    assert slow.value <= TIME.evaluate(replace(blind.network, server_rate=1.0)).value
    for name in ("uniform", "balanced", "square-root"):
        network = Network(SMALL, named_routing(SMALL, name), slow.concurrency, server_rate=1.0)
        assert slow.value <= TIME.evaluate(network).value * (1 + 1e-9)
        assert slow.comparison()[name].value == pytest.approx(TIME.evaluate(network).value)


def test_plan_with_stations_is_read_back(tmp_path: Path) -> None:
    for objective in (TIME, Energy(CONSTANTS, 0.5, server_power=2.0)):
        made = plan(SMALL, objective, server_rate=2.0)
        made.write(tmp_path / "plan.toml")
        again = Plan.read(tmp_path / "plan.toml")
        assert again.network == made.network
        assert again.objective == objective
        assert again.value == pytest.approx(made.value, rel=1e-12)
    weighed = time_and_energy(SMALL, CONSTANTS, squared_gradient_norm=0.5, energy_share=0.3)
    made = plan(SMALL, weighed, concurrency=3)
    made.write(tmp_path / "plan.toml")
    assert Plan.read(tmp_path / "plan.toml").objective == weighed
    assert {"energy", "time-and-energy"} <= OBJECTIVES.keys()


def test_sensitivity_keeps_links_and_server() -> None:
    made = plan(SMALL, TIME, concurrency=4, server_rate=3.0)
    rows = sensitivity(made)
    for k, row in enumerate(rows):
        counts = SMALL.counts.copy()
        counts[k] -= 1
        fewer = SMALL.select([0, 1, 2], counts)
        best = optimize_routing(fewer, 4, TIME, server_rate=3.0)
        assert row.without_one == pytest.approx(best.value, rel=0.02)


def test_groups_keep_links_and_powers() -> None:
    fleet = Fleet(
        [1.0, 1.001, 1.002, 5.0],
        counts=[2, 1, 1, 3],
        uplink=[2.0, 2.001, 0.0, 1.0],
        power_compute=[1.0, 1.0, 1.0, 4.0],
    )
    grouping = group_clients(fleet)
    assert grouping.fleet.classes == 3
    assert grouping.fleet.size == fleet.size
    for name, values in fleet.columns.items():
        total = grouping.fleet.counts @ grouping.fleet.columns[name]
        assert total == pytest.approx(fleet.counts @ values)
    alike = grouping.fleet.columns["uplink"][grouping.group]
    np.testing.assert_allclose(alike, fleet.columns["uplink"], rtol=0.01)


@pytest.mark.slow
def test_time_energy_frontier_of_a_hundred_clients() -> None:
    curve = energy_frontier(
        FIVE_TYPES, CONSTANTS, squared_gradient_norm=0.5, server_rate=20.0, points=5
    )
    assert np.all(np.diff(curve.time) > 0)
    assert np.all(np.diff(curve.energy) < 0)
    tasks = [network.concurrency for network in curve.networks]
    assert tasks == sorted(tasks, reverse=True)
    assert tasks[-1] > 1  # idle power: one task in flight would leave all others idling


def test_without_idle_power_energy_is_least_with_one_task() -> None:
    columns = {name: v for name, v in FIVE_TYPES.columns.items() if name != "power_idle"}
    fleet = Fleet(FIVE_TYPES.service_rates, FIVE_TYPES.counts, **columns)
    assert optimize_concurrency(fleet, Energy(CONSTANTS, 0.5)).concurrency == 1
