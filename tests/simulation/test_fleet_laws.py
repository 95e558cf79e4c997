"""Laws of service times that the fleet itself tells, class by class."""

from pathlib import Path

import numpy as np
import pytest

from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.fleet.laws import Law, Trace, as_laws, trace_fleet
from sojourn.fleet.named import read_fleet
from sojourn.planning.search import group_clients
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate

TEXT = "service_rate,count,law\n1,2,lognormal(sigma=0.5)\n4,1,deterministic\n"


def test_column_law_is_simulated_unless_another_is_given(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text(TEXT)
    fleet = read_fleet("fleet.csv", tmp_path)
    network = Network(fleet, uniform_routing(fleet), 4)
    told = simulate(network, rounds=500, seed=1)
    laws = (Law("lognormal", sigma=0.5), Law("deterministic"))
    assert told.scenario.law == laws
    np.testing.assert_array_equal(told.time, simulate(network, rounds=500, seed=1, law=laws).time)
    assert Scenario.of(network, law="gamma").law == (Law("gamma"),)


def test_column_law_is_written_and_read_back(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text(TEXT)
    fleet = Fleet.from_csv(tmp_path / "fleet.csv")
    fleet.to_csv(tmp_path / "again.csv")
    assert Fleet.from_csv(tmp_path / "again.csv") == fleet
    network = Network(fleet, uniform_routing(fleet), 4)
    assert Network.from_table(network.to_table()) == network
    split = Network(fleet.select([0, 0, 1], [1, 1, 1]), [0.2, 0.3, 0.5], 4, parents=[0, 0, 1])
    assert split.whole_fleet() == fleet
    assert Scenario.of(split).law == (Law("lognormal", sigma=0.5), Law("deterministic"))


def test_groups_do_not_mix_laws() -> None:
    fleet = Fleet([1.0, 1.0, 1.0], law=["erlang", "gamma", "erlang"])
    assert sorted(group_clients(fleet).fleet.law) == ["erlang", "gamma"]


def test_wrong_laws_are_refused_with_the_file(tmp_path: Path) -> None:
    for law, complaint in (
        ("lognorml", "lognorml"),
        ("lognormal(sigma)", "written like lognormal"),
        ("", "line 2: the law is missing"),
    ):
        (tmp_path / "fleet.csv").write_text(f"service_rate,law\n1,{law}\n")
        with pytest.raises(InvalidFile, match=complaint):
            read_fleet("fleet.csv", tmp_path)
    with pytest.raises(InvalidInput, match="law must have one entry per class"):
        Fleet([1.0, 2.0], law=["gamma"])
    assert as_laws("pareto(shape=3)") == (Law("pareto", shape=3.0),)


def test_speeds_from_a_trace_leave_the_rest_of_the_fleet_as_it_is() -> None:
    fleet = Fleet(
        [1.0, 2.0],
        counts=[3, 1],
        names=["a", "b"],
        uplink=[0.5, 0.0],
        weight=[10, 30],
        law=["exponential", "deterministic"],
        extra={"site": ["x", "y"]},
    )
    moved = trace_fleet(fleet, [Trace([4.0, 6.0]), Trace([0.5])])
    assert moved.service_rates.tolist() == [0.2, 2.0]
    assert moved == fleet.with_rates([0.2, 2.0])
    assert moved.extra == {"site": ("x", "y")}
    assert moved.columns.keys() == {"uplink", "weight"}
