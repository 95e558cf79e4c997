"""Timelines: when tasks begin, who waits, and that the picture shows all of it."""

import math
import xml.etree.ElementTree as ET
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sojourn.errors import InvalidInput
from sojourn.figures.timeline import (
    AXES,
    SECONDS,
    VIRTUAL,
    Timeline,
    save_timelines,
    timelines_svg,
)
from sojourn.fleet import Network, built_in_fleet, uniform_routing
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate

FLEET = built_in_fleet("three-clusters")


def schedule(policy: str = "routed", **changes: float) -> Schedule:
    network = Network(FLEET, uniform_routing(FLEET), 30)
    return simulate(network, policy=policy, seed=3, **(changes or {"time": 400.0}))


def test_a_queue_by_hand() -> None:
    """Client 0 gets two tasks at once, client 1 one that is sent when the first is done."""
    line = Timeline.from_completions(
        [0, 1, 0],
        [0, 1, 0],
        [2.0, 3.0, 5.0],
        pending=([0], [2]),
        classes=[("a", 1), ("b", 1)],
        until=6.0,
    )
    assert line.client.tolist() == [0, 0, 0, 1]
    assert line.sent.tolist() == [0.0, 0.0, 3.0, 2.0]
    assert line.begin.tolist() == [0.0, 2.0, 5.0, 2.0]
    assert line.end.tolist() == [2.0, 5.0, math.inf, 3.0]
    assert_allclose(line.staleness, [0, 2, math.nan, 0])
    assert_allclose(line.busy, [1.0, 1 / 6])
    assert_allclose(line.waiting, [(2 + 2) / 6, 0.0])
    assert line.longest_queue() == 1
    assert line.completed == 3


@pytest.mark.parametrize("policy", ["routed", "never-queue", "idle", "shuffled", "synchronous"])
def test_every_policy_has_a_timeline(policy: str) -> None:
    made = schedule(policy)
    line = made.timeline(until=50.0)
    assert line.completed == int((made.time <= 50.0).sum())
    assert (line.begin >= line.sent).all()
    assert (line.end > line.begin)[np.isfinite(line.begin)].all()
    for client in range(30):
        own = line.client == client
        assert (line.begin[own][1:] >= line.end[own][:-1]).all(), "one task at a time"
    if policy == "never-queue":
        assert_allclose(line.busy, 1.0)
        assert line.longest_queue() == 0
    if policy == "routed":
        assert line.busy.mean() < 0.8
        assert line.waiting.sum() > 5


def test_what_is_in_flight_is_m_at_all_times() -> None:
    line = schedule().timeline(until=60.0)
    for at in (0.5, 17.0, 59.9):
        assert ((line.sent <= at) & (line.end > at)).sum() == 30


def test_the_picture_is_xml_with_all_rows_and_says_so_in_words() -> None:
    line = schedule().timeline(until=40.0)
    drawn = ET.fromstring(line.to_svg("one <title>"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f".//{space}rect[@class='touch']")) == 30
    assert drawn.find(f".//{space}path[@class='queue']") is not None
    assert line.in_words() in drawn.attrib["aria-label"]
    texts = [text.text for text in drawn.iter(f"{space}text")]
    assert {"slow", "medium", "fast", "one <title>", "0", "10", "40"} <= set(texts)


def test_many_clients_are_shown_by_some() -> None:
    line = Timeline.from_completions(
        range(500), [0] * 500, np.arange(1, 501), classes=[("all", 500)]
    )
    few = line.sampled()
    assert few.clients == 60
    assert few.until == line.until
    assert few.end[[0, -1]].tolist() == [1.0, 500.0], "the first and the last client are among them"
    assert line.in_words() in line.to_svg(), "the words are about all of them"


def test_a_picture_of_many_clients_costs_its_rows() -> None:
    """All pairs of clients and tasks were compared once: 46 s for 100,000 clients."""
    size = 100_000
    line = Timeline.from_completions(
        range(size), [0] * size, np.arange(1, size + 1), classes=[("all", size)]
    )
    begun = monotonic()
    line.to_svg()
    assert monotonic() - begun < 5.0


def test_files(tmp_path: Path) -> None:
    panels = [("a", schedule().timeline(20.0)), ("b", schedule("never-queue").timeline(20.0))]
    assert save_timelines(panels, tmp_path / "t.svg").read_text().rstrip() == timelines_svg(panels)
    assert save_timelines(panels, tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInput, match=r"\.svg or \.png"):
        save_timelines(panels, tmp_path / "t.gif")


def test_the_axis_of_a_picture_names_the_unit_of_time(tmp_path: Path) -> None:
    """A deployment's timeline is in seconds, in a PNG as in an SVG."""
    drawn = []
    for unit in (VIRTUAL, SECONDS):
        line = Timeline.from_completions([0], [0], [1.0], classes=[("only", 1)], unit=unit)
        assert AXES[unit] in line.to_svg()
        drawn.append(line.save(tmp_path / "t.png").read_bytes())
    assert drawn[0] != drawn[1]


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="positive time"):
        schedule().timeline(until=0.0)


def test_a_notebook_shows_it() -> None:
    shown = schedule(rounds=200)._repr_html_()
    assert shown.startswith("<p>Schedule(200 rounds")
    assert "<svg" in shown
