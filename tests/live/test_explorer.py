"""What the explorer answers is what the package computes, asked through its interface."""

import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sojourn as sj
from sojourn.live.explorer import Explorer
from sojourn.live.settings import MOST_CLASSES
from sojourn.planning.search.exponent import exponent_routing
from sojourn.simulation import streams
from sojourn.strategy.strategy import Strategy
from sojourn.theory.constants import DEFAULT_CONSTANTS
from sojourn.theory.stability import largest_stable_step
from tests.commands import Commands
from tests.live.conftest import Ask

FLEET = sj.built_in_fleet("three-clusters")
OTHER = {"rates": [0.02, 0.5, 3.0], "counts": [4, 7, 2]}
OTHER_FLEET = sj.Fleet(OTHER["rates"], OTHER["counts"], FLEET.names)


def answered(ask: Ask, name: str, **values: Any) -> Any:
    status, found = ask(name, values)
    assert status == 200, found
    return found


@pytest.mark.parametrize("fleet, given", [(FLEET, {}), (OTHER_FLEET, OTHER)])
@pytest.mark.parametrize("exponent, tasks", [(0.0, 30), (0.5, 1), (0.7, 12)])
def test_routed_numbers_are_those_of_analyze(
    ask: Ask, fleet: sj.Fleet, given: dict[str, Any], exponent: float, tasks: int
) -> None:
    view = answered(ask, "view", **given, exponent=exponent, concurrency=tasks)
    network = sj.Network(fleet, exponent_routing(fleet, exponent), tasks)
    expected = sj.analyze(network)
    now = view["summary"]
    assert now["throughput"] == expected.throughput
    assert now["noise_rate"] == expected.noise_rate
    assert now["noise_floor"] == sj.noise_floor(fleet, tasks)
    assert now["mean_staleness_time"] == expected.mean_staleness_time
    assert now["worst_staleness"] == expected.staleness.max()
    assert now["stable_step"] == largest_stable_step(tasks, expected.weight_square)
    for k, row in enumerate(view["classes"]):
        assert row["busy"] == expected.utilization[k]
        assert row["staleness"] == expected.staleness[k]
        assert row["staleness_time"] == expected.staleness_time[k]
        assert row["share"] == fleet.counts[k] * expected.shares[k]
        assert row["weight"] == pytest.approx(expected.weights[k], rel=1e-12)


def test_never_queueing_is_at_the_floor(ask: Ask) -> None:
    for tasks in (5, 30):
        view = answered(ask, "view", dispatch="never-queue", concurrency=tasks)
        network = sj.Network(FLEET, sj.uniform_routing(FLEET), tasks)
        expected = sj.analyze(network, "never-queue")
        assert view["summary"]["throughput"] == expected.throughput
        assert view["summary"]["noise_over_floor"] == pytest.approx(1.0, rel=1e-12)
        assert view["summary"]["waiting"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("debias", [0.0, 0.3, 1.0])
def test_weights_have_mean_one_whatever_the_debias(ask: Ask, debias: float) -> None:
    view = answered(ask, "view", dispatch="never-queue", debias=debias)
    rows = view["classes"]
    assert sum(row["share"] * row["weight"] for row in rows) == pytest.approx(1.0)
    square = sum(row["share"] * row["weight"] ** 2 for row in rows)
    assert view["summary"]["stable_step"] == pytest.approx(largest_stable_step(30, square))
    spread = rows[0]["weight"] / rows[2]["weight"]
    assert spread == pytest.approx((rows[2]["share"] / rows[0]["share"]) ** debias)


@pytest.mark.parametrize("goal", ["noise-rate", "time-to-accuracy"])
def test_the_map_is_the_objective_everywhere(ask: Ask, goal: str) -> None:
    found = answered(ask, "view", goal=goal, squared_gradient_norm=0.4)["map"]
    wanted = sj.NoiseRate() if goal == "noise-rate" else sj.TimeToAccuracy(DEFAULT_CONSTANTS, 0.4)
    for i, j in ((0, 0), (4, 7), (len(found["tasks"]) - 1, 10)):
        p = exponent_routing(FLEET, found["exponents"][j])
        value = wanted.evaluate(sj.Network(FLEET, p, found["tasks"][i])).value
        assert found["values"][i][j] == value
    assert found["best"]["value"] == np.min(found["values"])
    floor = found["best"]["value"]
    assert (found["never"] is None) == (goal == "time-to-accuracy")
    if found["never"] is not None:
        never = found["never"]["values"]
        floor = np.min(never)
        assert floor < found["best"]["value"], "never queueing beats every routing"
        assert found["never"]["shades"][int(np.argmin(never))] == "s5"
    times = np.array(found["values"], dtype=float) / floor
    assert (times[np.array(found["shades"]) == "s5"] <= 1.05).all()
    assert (times[np.array(found["shades"]) == "s0"] > 5.0).all()
    assert found["legend"][0] == ["s5", "within 5%"]


@pytest.mark.parametrize("goal", ["noise-rate", "time-to-accuracy"])
def test_the_advice_is_the_plan(ask: Ask, goal: str) -> None:
    found = answered(ask, "advice", goal=goal)
    wanted = sj.NoiseRate() if goal == "noise-rate" else sj.TimeToAccuracy(DEFAULT_CONSTANTS, 0.5)
    expected = sj.plan(FLEET, wanted)
    routed = {"goal": goal, "dispatch": "planned", "concurrency": expected.concurrency}
    view = answered(ask, "view", parts=["numbers"], **routed)
    shares = FLEET.counts * expected.network.routing
    assert [row["share"] for row in view["classes"]] == pytest.approx(shares, rel=1e-12)
    if goal == "time-to-accuracy":
        assert (found["use"]["dispatch"], found["use"]["concurrency"]) == (
            "planned",
            expected.concurrency,
        )
        assert view["summary"]["time_to_target"] == expected.value
    assert not found["is_best"]
    used = answered(ask, "advice", **{"goal": goal, **found["use"]})
    assert used["is_best"], "nothing is left to recommend once it is used"


def test_the_recommendation_does_what_it_says(ask: Ask) -> None:
    found = answered(ask, "advice")
    before = answered(ask, "view")["summary"]
    after = answered(ask, "view", **found["use"])["summary"]
    less = before["noise_rate"] / after["noise_rate"]
    more = after["throughput"] / before["throughput"]
    assert (
        found["title"]
        == f"Never queue: noise {less:.3g} times lower, {more:.3g} times as many updates"
    )


def test_a_planned_routing_is_that_of_plan(ask: Ask) -> None:
    view = answered(ask, "view", dispatch="planned", concurrency=12)
    expected = sj.analyze(sj.plan(FLEET, sj.NoiseRate(), concurrency=12).network)
    assert view["summary"]["noise_rate"] == expected.noise_rate


def test_a_saved_plan_is_read_back_with_everything(ask: Ask, tmp_path: Path) -> None:
    settings = {"dispatch": "never-queue", "concurrency": 11, "debias": 0.5, "learning_rate": 0.07}
    kept = answered(ask, "save", **settings, file="strategy.toml")
    path = tmp_path / kept["name"]
    path.write_text(kept["text"], encoding="utf-8")
    strategy = Strategy.read(path)
    assert strategy.scenario.policy == sj.NeverQueue()
    assert (strategy.network.concurrency, strategy.learning_rates) == (11, (0.07,))
    assert strategy.rule == sj.rules.AsyncSGD(debias=0.5)
    assert strategy.network.fleet == FLEET
    schedule = sj.simulate(strategy.network, strategy.scenario, rounds=50, seed=1)
    assert schedule.rounds == 50


def test_a_saved_fleet_is_the_one_on_the_page(ask: Ask, tmp_path: Path) -> None:
    kept = answered(ask, "save", **OTHER, file="fleet.csv")
    (tmp_path / "fleet.csv").write_text(kept["text"], encoding="utf-8")
    assert sj.Fleet.from_csv(tmp_path / "fleet.csv") == OTHER_FLEET
    assert ask("save", {"file": "../other"})[0] == 422


@pytest.mark.parametrize(
    "settings",
    [{"exponent": 0.5, "concurrency": 9}, {**OTHER, "dispatch": "never-queue", "concurrency": 5}],
)
def test_the_command_tells_the_same(
    ask: Ask, commands: Commands, tmp_path: Path, settings: dict[str, Any]
) -> None:
    view = answered(ask, "view", **settings)
    for name in view["command"]["needs"]:
        kept = answered(ask, "save", **settings, file=name)
        (tmp_path / name).write_text(kept["text"], encoding="utf-8")
    words = view["command"]["line"].split()
    assert words[0] == "sojourn"
    done = commands.run(tmp_path, *words[1:], "--json")
    assert done.code == 0, done.error
    told = json.loads(done.out)
    assert told["throughput"] == pytest.approx(view["summary"]["throughput"])
    assert told["noise_rate"] == pytest.approx(view["summary"]["noise_rate"])


def test_every_other_command_runs_on_what_was_saved(ask: Ask, tmp_path: Path) -> None:
    settings = {"exponent": 0.35, "concurrency": 6}
    view = answered(ask, "view", **settings)
    assert view["command"] == {"line": "sojourn simulate strategy.toml", "needs": ["strategy.toml"]}
    kept = answered(ask, "save", **settings, file="strategy.toml")
    (tmp_path / "strategy.toml").write_text(kept["text"], encoding="utf-8")
    network = sj.Strategy.read(tmp_path / "strategy.toml").network
    assert sj.analyze(network).throughput == pytest.approx(view["summary"]["throughput"])
    planned = answered(ask, "view", dispatch="planned", goal="time-to-accuracy", concurrency=7)
    assert planned["command"]["line"].startswith("sojourn plan three-clusters --concurrency 7")


def test_pinned_settings_are_compared_in_order(ask: Ask) -> None:
    rows = answered(ask, "compare", settings=[{"concurrency": 3}, {"dispatch": "never-queue"}])
    assert [row["words"].split(",")[0] for row in rows] == ["uniform routing", "never queue"]
    assert rows[1]["noise_rate"] == pytest.approx(sj.noise_floor(FLEET, 30))
    assert ask("compare", {"settings": [{}] * 99})[0] == 422


def test_the_timeline_shows_the_settings(ask: Ask) -> None:
    queues = answered(ask, "view")["timeline"]["svg"]
    busy = answered(ask, "view", dispatch="never-queue")["timeline"]["svg"]
    assert 'class="queue"' in queues
    assert 'class="queue"' not in busy
    assert busy.count('class="touch"') == 30


def test_two_pages_ask_at_once(ask: Ask) -> None:
    """Everyone gets the answer to their own question, whoever else is asking."""
    with ThreadPoolExecutor(8) as pool:
        tasks = [3, 30, 7, 11, 3, 90, 1, 30] * 3
        found = list(pool.map(lambda m: answered(ask, "view", concurrency=m), tasks))
    for m, view in zip(tasks, found, strict=True):
        network = sj.Network(FLEET, sj.uniform_routing(FLEET), m)
        assert view["summary"]["throughput"] == sj.analyze(network).throughput


def test_a_fleet_of_many_speeds_is_grouped_and_says_so() -> None:
    explorer = Explorer(sj.built_in_fleet("fifty"), "fifty")
    assert explorer.base.classes <= MOST_CLASSES
    assert explorer.base.size == 50
    assert explorer.about()["note"].startswith("50 speeds, grouped into")
    view = explorer.view({})
    assert view["command"]["needs"] == ["fleet.csv"], "the grouped fleet is not the one named"


@pytest.mark.parametrize("uplink", [[1.0, 0.5], [30.0, 20.0]])
def test_with_links_whatever_has_less_noise_is_recommended(uplink: list[float]) -> None:
    fleet = sj.Fleet([0.1, 1.0], counts=[2, 3], uplink=uplink)
    explorer = Explorer(fleet, "fleet.csv")
    used = explorer.view({"parts": ["numbers"], **explorer.advice({})["use"]})
    found = used["summary"]["noise_rate"]
    never = sj.analyze(sj.Network(fleet, sj.uniform_routing(fleet), 5), "never-queue")
    assert found == min(never.noise_rate, sj.plan(fleet, sj.NoiseRate()).value)


@pytest.mark.parametrize("distinct", [False, True])
def test_a_hundred_thousand_clients_are_answered_in_parts(
    distinct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[int] = []
    original = streams.substreams

    def counted(seed: Any, place: int, number: int) -> list[np.random.Generator]:
        most.append(number)
        return original(seed, place, number)

    monkeypatch.setattr(streams, "substreams", counted)
    speeds = np.exp(np.random.default_rng(0).normal(size=100_000))
    few = sj.Fleet([0.01, 0.1, 1.0, 3.0, 9.0], counts=[20_000] * 5)
    explorer = Explorer(sj.Fleet(speeds) if distinct else few, "large.csv")
    numbers = explorer.view({"parts": ["numbers"]})
    assert set(numbers) == {"summary", "classes", "command", "horizon"}
    assert sum(row["count"] for row in numbers["classes"]) == 100_000
    assert set(explorer.view({"parts": ["map"]})) == {"map"}
    drawn = explorer.view({"parts": ["timeline"]})["timeline"]
    assert "100,000 clients" in drawn["words"]
    assert len(drawn["svg"]) < 400_000
    assert max(most, default=0) < 10_000, "a stream for each client takes seconds"
    with pytest.raises(sj.InvalidInput, match="parts must be some of"):
        explorer.view({"parts": ["everything"]})


def test_only_the_last_of_a_pages_waiting_questions_is_computed() -> None:
    explorer = Explorer(FLEET, "three-clusters")
    begun, release, computed = threading.Event(), threading.Event(), []

    def compute(number: int) -> dict[str, int]:
        computed.append(number)
        begun.set()
        release.wait(10)
        return {"number": number}

    def ask(pool: ThreadPoolExecutor, number: int, page: str | None) -> "Future[dict[str, Any]]":
        return pool.submit(explorer._slow, "map", page, partial(compute, number))

    with ThreadPoolExecutor(5) as pool:
        first = ask(pool, 1, "one")
        assert begun.wait(10)
        waiting = []
        for turn, number in enumerate((2, 3, 4), 2):
            waiting.append(ask(pool, number, "one"))
            while explorer._latest["map", "one"] < turn:
                time.sleep(0.001)
        other = ask(pool, 5, "other")
        release.set()
        assert [one.result() for one in waiting[:-1]] == [{"superseded": True}] * 2
        assert (first.result(), waiting[-1].result()) == ({"number": 1}, {"number": 4})
        assert other.result() == {"number": 5}
    assert sorted(computed) == [1, 4, 5]


def test_what_a_page_asks_first_is_begun_before_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer, asked = Explorer(FLEET, "three-clusters"), []
    for name in ("view", "advice"):
        whole = getattr(explorer, name)

        def noted(values: dict[str, Any], name: str = name, whole: Any = whole) -> Any:
            asked.append((name, *values.get("parts", ())))
            return whole(values)

        monkeypatch.setattr(explorer, name, noted)
    explorer.prepare().join()
    assert asked == [("view", "numbers"), ("advice",), ("view", "timeline")]


def test_the_learning_rate_that_is_recommended_is_stable(ask: Ask) -> None:
    found = answered(ask, "advice", learning_rate=5.0)
    after = answered(ask, "view", **{**found["use"]})["summary"]
    assert found["use"]["learning_rate"] <= after["stable_rate"]


def test_what_waits_by_rounding_does_not_wait() -> None:
    explorer = Explorer(sj.built_in_fleet("fifty"), "fifty")
    for tasks in (1, 50):
        view = explorer.view(
            {"parts": ["numbers"], "concurrency": tasks, "dispatch": "never-queue"}
        )
        assert {row["waiting"] for row in view["classes"]} == {0.0}
