"""Fleets, networks and routings, and what happens to bad ones."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

import sojourn as sj


def test_csv_round_trip_is_exact(tmp_path):
    fleet = sj.Fleet([0.1, 1 / 3, 1e6], counts=[1, 20, 300], names=["a", "b, with comma", "ü"])
    fleet.to_csv(tmp_path / "fleet.csv")
    assert sj.Fleet.from_csv(tmp_path / "fleet.csv") == fleet


def test_csv_keeps_links_and_powers(tmp_path):
    fleet = sj.Fleet(
        [0.1, 2.0],
        counts=[3, 1],
        names=["a", "b"],
        downlink=[1 / 3, 0.0],
        uplink=[0.0, 1e-7],
        power_compute=[5.0, 0.1],
        power_uplink=[1.0, 2.0],
        power_downlink=[0.5, 0.25],
        power_idle=[0.0, 1 / 7],
    )
    fleet.to_csv(tmp_path / "fleet.csv")
    read = sj.Fleet.from_csv(tmp_path / "fleet.csv")
    assert read == fleet
    assert list(read.columns) == list(fleet.columns)
    assert read != sj.Fleet([0.1, 2.0], counts=[3, 1], names=["a", "b"])


def test_columns_of_ones_own_are_carried_along(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("region,service_rate,lat,country\neu,1,48.1,DE\nus,2,40,US\n")
    fleet = sj.Fleet.from_csv(path)
    own = {"region": ("eu", "us"), "lat": ("48.1", "40"), "country": ("DE", "US")}
    assert fleet.extra == own
    assert fleet.with_rates([3.0, 4.0]).extra == own
    assert fleet.select([1, 0, 1]).extra["region"] == ("us", "eu", "us")
    fleet.to_csv(path)
    assert sj.Fleet.from_csv(path).extra == own
    assert fleet == sj.Fleet([1.0, 2.0])
    with pytest.raises(sj.InvalidInput, match="region must have one entry per class"):
        sj.Fleet([1.0, 2.0], extra={"region": ["eu"]})


def test_selected_classes_keep_their_columns():
    fleet = sj.Fleet([1.0, 2.0], counts=[5, 2], names=["a", "b"], uplink=[0.5, 0.1])
    split = fleet.select([0, 0, 1], counts=[1, 4, 2], names=["a1", "a2", "b"])
    expected = sj.Fleet([1.0, 1.0, 2.0], [1, 4, 2], ["a1", "a2", "b"], uplink=[0.5, 0.5, 0.1])
    assert split == expected
    assert fleet.select([1]) == sj.Fleet([2.0], [2], uplink=[0.1])


@pytest.mark.parametrize(
    "column, values, message",
    [
        ("downlink", [0.1], "downlink must have one entry per class: the fleet has 2 classes"),
        ("uplink", [0.1, -0.5], "uplink must lie between 0 and 1e.30; entry 2 is -0.5"),
        ("uplink", [np.inf, 1.0], "entry 1 is inf"),
        ("power_idle", [np.nan, 1.0], "power_idle .* entry 1 is nan"),
        ("power_compute", ["much", 1.0], "power_compute must be numbers"),
    ],
)
def test_bad_columns(column, values, message):
    with pytest.raises(sj.InvalidInput, match=message):
        sj.Fleet([1.0, 2.0], **{column: values})


@pytest.mark.parametrize("rate", [0.0, -1.0, np.inf, np.nan, "fast", True])
def test_bad_server_rate(rate):
    with pytest.raises(sj.InvalidInput, match="server_rate must be"):
        sj.Network(sj.Fleet([1.0]), [1.0], 1, server_rate=rate)


def test_networks_differ_by_their_servers():
    fleet = sj.Fleet([1.0])
    assert sj.Network(fleet, [1.0], 2, server_rate=3) == sj.Network(
        fleet, [1.0], 2, server_rate=3.0
    )
    assert sj.Network(fleet, [1.0], 2, server_rate=3.0) != sj.Network(fleet, [1.0], 2)


def test_csv_with_one_column_and_a_byte_order_mark(tmp_path):
    (tmp_path / "fleet.csv").write_text("\ufeffservice_rate\n1.0\n\n2.5\n", encoding="utf-8")
    assert sj.Fleet.from_csv(tmp_path / "fleet.csv") == sj.Fleet([1.0, 2.5])


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "empty"),
        ("\n1\n", "no column service_rate"),
        ("service_rate\n", "no clients"),
        ("name,service_rate,cuont\na,1,2\n", "unknown column 'cuont': did you mean 'count'?"),
        ("service_rate,uplimk\n1,2\n", "did you mean 'uplink'?"),
        ("name;service_rate\na;0,1\n", "separated by semicolons: write commas between them"),
        ("name\tservice_rate\na\t1\n", "separated by tabs"),
        ("name,seconds\na,10\n", "estimate` finds it from a log of tasks"),
        ("service_rate\nO.1\n", r"^[^:]*, line 2: service_rate must be a number"),
        ("rate\n1\n", "no column service_rate in the first line: is it 'rate'?"),
        ("Service Rate\n1\n", "unknown column 'Service Rate': did you mean 'service_rate'"),
        ("service_rate,counts\n1,2\n", "unknown column 'counts': did you mean 'count'"),
        ("service_rate,\n1,2\n", "column 2 has no name"),
        ("count\n1\n", "no column service_rate"),
        ("service_rate,service_rate\n1,1\n", "stands twice"),
        (",".join(f"c{i}" for i in range(20_000)) + "\n1\n", "at most 1000"),
        ("service_rate,name\n1,\x1b[2Jcleared\n", "line 2: .* holds control characters"),
        ("service_rate,name\n1,photo\u202egnp.exe\n", "line 2: .* holds control characters"),
        ('service_rate,name\n1,"two\nlines"\n', "line 2: .* holds control characters"),
        ("service_rate\nfast\n", "line 2: service_rate must be a number; it is 'fast'"),
        ("service_rate\n1\n1_0\n", "line 3: service_rate must be a number; it is '1_0'"),
        ("service_rate,count\n1,1\n2\n", "line 3: 1 fields where the first line has 2"),
        ("service_rate\n1\n-1\n", "line 3: service_rate must be positive and finite; it is -1"),
        ("service_rate\n0\n", "line 2: service_rate must be positive"),
        ("service_rate\nnan\n", "line 2: service_rate must be positive"),
        ("service_rate\ninf\n", "line 2: service_rate must be positive"),
        ("service_rate,count\n1,1.5\n", "line 2: count must be whole"),
        ("service_rate,count\n1,0\n", "line 2: count must be whole numbers of at least 1"),
        ("service_rate,count\n1,\n", "line 2: count must be a number"),
        ("service_rate,uplink\n1,0\n2,-1\n", "line 3: uplink must lie between 0 and"),
        ("service_rate,downlink\n1,slow\n", "line 2: downlink must be a number"),
        ("service_rate,power_compile\n1,1\n", "did you mean 'power_compute'"),
    ],
)
def test_bad_csv_says_what_and_where(tmp_path, content, message):
    path = tmp_path / "fleet.csv"
    path.write_text(content)
    with pytest.raises(sj.InvalidFile, match=message):
        sj.Fleet.from_csv(path)


def test_unreadable_csv(tmp_path):
    with pytest.raises(sj.InvalidFile, match="cannot be read"):
        sj.Fleet.from_csv(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(sj.InvalidFile, match="UTF-8"):
        sj.Fleet.from_csv(tmp_path / "binary.csv")


@pytest.mark.parametrize(
    "rates, counts, message",
    [
        ([], None, "non-empty"),
        ([1.0, -1.0], None, "entry 2 is -1"),
        ([0.0], None, "entry 1 is 0"),
        ([np.nan], None, "entry 1 is nan"),
        ([np.inf], None, "entry 1 is inf"),
        (["fast"], None, "must be numbers"),
        ([1.0], [1.5], "whole numbers"),
        ([1.0], [0], "whole numbers of at least 1"),
        ([1.0], [1, 2], "one entry per class"),
    ],
)
def test_bad_fleet(rates, counts, message):
    with pytest.raises(sj.InvalidInput, match=message):
        sj.Fleet(rates, counts)


@pytest.mark.parametrize(
    "routing, concurrency, message",
    [
        ([0.5, 0.4], 3, "must sum to 1 over the 2 clients; it sums to 0.9"),
        ([1.5, -0.5], 3, "entry 2 is -0.5. Leave out clients"),
        ([1.0, 0.0], 3, "Leave out clients"),
        ([1.0], 3, "one entry per class"),
        ([0.5, 0.5], 0, "at least 1"),
        ([0.5, 0.5], 1.5, "whole number"),
        ([0.5, 0.5], np.nan, "whole number"),
        ([0.5, 0.5], "many", "whole number"),
    ],
)
def test_bad_network(routing, concurrency, message):
    with pytest.raises(sj.InvalidInput, match=message):
        sj.Network(sj.Fleet([1.0, 2.0]), routing, concurrency)


def test_values_cannot_be_changed():
    fleet = sj.Fleet([1.0, 2.0])
    with pytest.raises(ValueError, match="read-only"):
        fleet.service_rates[0] = 3.0


def test_routings_sum_to_one_over_clients():
    fleet = sj.Fleet([1e-6, 1.0, 1e6], counts=[7, 11, 2])
    for name in ("uniform", "balanced", "square-root"):
        np.testing.assert_allclose(fleet.counts @ sj.named_routing(fleet, name), 1.0, rtol=1e-14)
    with pytest.raises(sj.UnknownName, match="did you mean 'uniform'"):
        sj.named_routing(fleet, "unifrom")


SPLIT = sj.Fleet([1.0, 1.0, 2.0], counts=[1, 2, 1], names=["a", "b", "c"])


@pytest.mark.parametrize("parents", [None, [0, 0, 1]])
@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_a_network_is_written_and_read_exactly(parents, names):
    fleet = sj.Fleet(SPLIT.service_rates, SPLIT.counts, names)
    network = sj.Network(fleet, [0.1, 0.2, 0.5], 7, parents=parents)
    table = json.loads(json.dumps(network.to_table()))
    assert sj.Network.from_table(table) == network
    assert network.whole_fleet().size == 4


def test_links_powers_and_server_are_written_and_read_exactly():
    fleet = sj.Fleet([1.0, 1.0, 2.0], downlink=[0.1, 0.1, 0.0], power_idle=[1 / 3, 1 / 3, 5.0])
    network = sj.Network(fleet, [0.1, 0.2, 0.7], 7, parents=[0, 0, 1], server_rate=0.3)
    table = json.loads(json.dumps(network.to_table()))
    assert sj.Network.from_table(table) == network
    assert network.whole_fleet() == sj.Fleet(
        [1.0, 2.0], [2, 1], downlink=[0.1, 0.0], power_idle=[1 / 3, 5.0]
    )
    uneven = sj.Fleet([1.0, 1.0, 2.0], uplink=[0.1, 0.2, 0.0])
    with pytest.raises(sj.InvalidInput, match="one class of the fleet must have one uplink"):
        sj.Network(uneven, [0.1, 0.2, 0.7], 7, parents=[0, 0, 1])
    del table["classes"][0]["downlink"]
    with pytest.raises(sj.InvalidFile, match="same columns"):
        sj.Network.from_table(table)


def test_networks_that_split_classes_differently_differ():
    network = sj.Network(SPLIT, [0.1, 0.2, 0.5], 7, parents=[0, 0, 1])
    assert network != sj.Network(SPLIT, [0.1, 0.2, 0.5], 7)
    assert replace(network, concurrency=3).parents.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "parents, message",
    [
        ([0, 1], "one entry per class"),
        ([1, 1, 2], "without a gap"),
        ([0, 2, 3], "without a gap"),
        ([0, 1, 0], "one after another"),
        ([0, 1, 1], "must have one service rate"),
    ],
)
def test_impossible_parents_are_said(parents, message):
    with pytest.raises(sj.InvalidInput, match=message):
        sj.Network(SPLIT, [0.1, 0.2, 0.5], 7, parents=parents)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"concurrency": None}, "'concurrency' must be a whole number"),
        ({"classes": []}, "'classes' is empty"),
        ({"clases": []}, "did you mean 'classes'"),
        ({"classes": [{"count": 1, "routing": 1.0}]}, "'service-rate' is missing"),
        ({"classes": [{"count": 1, "routing": 0.5, "service-rate": 1}]}, "must sum to 1"),
    ],
)
def test_bad_tables_of_networks_say_what_is_wrong(change, message):
    table = sj.Network(SPLIT, [0.1, 0.2, 0.5], 7).to_table() | change
    with pytest.raises(sj.InvalidFile, match=message):
        sj.Network.from_table(table)


@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_of_hundreds_and_thousands_of_digits_are_refused_in_a_sentence(digits):
    large = 10**digits
    for make in (
        lambda: sj.Fleet([0.5, large]),
        lambda: sj.Fleet([0.5, 1.0], counts=[large, 1]),
        lambda: sj.Fleet([0.5, 1.0], downlink=[large, 1.0]),
        lambda: sj.Fleet(["fast", large]),
        lambda: sj.Network(sj.Fleet([1.0]), [1.0], large),
        lambda: sj.Network(sj.Fleet([1.0, 1.0]), [large, 1.0], 3),
    ):
        with pytest.raises(sj.InvalidInput) as refused:
            make()
        assert len(str(refused.value)) < 200


def test_clients_that_memory_cannot_hold_are_not_listed_one_by_one():
    fleet = sj.Fleet([1.0, 2.0], counts=[10**15, 3])
    assert sj.analyze(sj.Network(fleet, sj.uniform_routing(fleet), 5)).throughput > 0
    with pytest.raises(sj.InvalidInput, match="for each of 1,000,000,000,000,003 clients"):
        fleet.expand([1.0, 2.0])


def test_a_class_without_a_law_is_exponential_by_itself():
    fleet = sj.Fleet([1.0, 2.0, 3.0], law=["lognormal(sigma=0.5)", "deterministic", "pareto"])
    table = sj.Network(fleet, sj.uniform_routing(fleet), 3).to_table()
    del table["classes"][1]["law"]
    read = sj.Network.from_table(table).fleet
    assert read.law == ("lognormal(sigma=0.5)", "exponential", "pareto")
    assert read.names is None


def test_a_class_without_a_name_leaves_the_others_theirs(tmp_path):
    fleet = sj.Fleet([1.0, 2.0], names=["slow", "fast"])
    table = sj.Network(fleet, sj.uniform_routing(fleet), 3).to_table()
    del table["classes"][0]["name"]
    read = sj.Network.from_table(table).fleet
    assert read.names == ("", "fast")
    assert [read.label(0), read.label(1)] == ["class 1", "fast"]
    read.to_csv(tmp_path / "fleet.csv")
    assert sj.Fleet.from_csv(tmp_path / "fleet.csv") == read


def test_fleets_and_networks_are_hashable():
    def network(weight=(1.0, 0.5), concurrency=3):
        fleet = sj.Fleet([1.0, 2.0], weight=weight, mean_up=[0.0, 1.0], mean_down=[-0.0, 1.0])
        return sj.Network(fleet, sj.uniform_routing(fleet), concurrency)

    same, other, more = network(), network(weight=(1.0, 2.0)), network(concurrency=4)
    assert network() == same
    assert hash(network()) == hash(same)
    assert len({network(), same, other, more}) == 3
    assert len({network().fleet, same.fleet, other.fleet, more.fleet}) == 2
    positive = sj.Fleet([1.0, 2.0], weight=(1.0, 0.5), mean_up=[0.0, 1.0], mean_down=[0.0, 1.0])
    assert positive == same.fleet
    assert hash(positive) == hash(same.fleet)
    assert pickle.loads(pickle.dumps(same)) == same
