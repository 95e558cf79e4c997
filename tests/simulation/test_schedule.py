"""Schedules as values and on disk: reproducible, streamed in constant memory, never half-written."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.fleet import Network, built_in_fleet, uniform_routing
from sojourn.simulation import simulate as module
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import replicate, simulate

FLEET = built_in_fleet("three-clusters")
NETWORK = Network(FLEET, uniform_routing(FLEET), 30)
ARRAYS = ("client", "dispatched", "time", "pending_client", "pending_dispatched")


def assert_equal(a: Schedule, b: Schedule) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert a.network == b.network
    for name in ("scenario", "horizon"):
        assert getattr(a, name) == getattr(b, name)


@pytest.mark.parametrize("law", ["exponential", "hyperexponential"])
@pytest.mark.parametrize("horizon", [{"rounds": 30_000}, {"time": 100_000.0}], ids=str)
def test_streaming_in_pieces_gives_the_same_schedule(
    law: str, horizon: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulate(NETWORK, law=law, seed=5, **horizon)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "CHUNK", 777)
    pieces = simulate(NETWORK, law=law, seed=5, folder=tmp_path / "s", **horizon)  # type: ignore[arg-type]
    assert isinstance(pieces.time, np.memmap)
    assert_equal(whole, pieces)


def test_more_rounds_continue_the_same_schedule() -> None:
    short, long = (simulate(NETWORK, rounds=r, seed=1, start="stationary") for r in (5_000, 50_000))
    np.testing.assert_array_equal(short.client, long.client[:5_000])
    np.testing.assert_array_equal(short.time, long.time[:5_000])


def test_same_seed_same_schedule_other_seed_another() -> None:
    assert_equal(simulate(NETWORK, rounds=1000, seed=4), simulate(NETWORK, rounds=1000, seed=4))
    sequence = np.random.SeedSequence(4)
    sequence.spawn(3)
    assert_equal(
        simulate(NETWORK, rounds=1000, seed=4), simulate(NETWORK, rounds=1000, seed=sequence)
    )
    other = simulate(NETWORK, rounds=1000, seed=5)
    assert not np.array_equal(other.client, simulate(NETWORK, rounds=1000, seed=4).client)


def test_replicates_do_not_depend_on_the_number_of_workers() -> None:
    one, three = (replicate(NETWORK, rounds=2_000, replicates=6, seed=9, workers=w) for w in (1, 3))
    np.testing.assert_array_equal(one.mean_tasks.mean, three.mean_tasks.mean)
    assert one.throughput.standard_error == three.throughput.standard_error > 0


def test_write_and_read_back(tmp_path: Path) -> None:
    seed = np.random.SeedSequence(3).spawn(2)[1]
    schedule = simulate(NETWORK, time=2_000.0, law="weibull", work=2.0, seed=seed)
    schedule.write(tmp_path / "schedule")
    schedule.write(tmp_path / "schedule")
    again = Schedule.read(tmp_path / "schedule")
    assert_equal(schedule, again)
    assert isinstance(again.seed, np.random.SeedSequence)
    assert again.seed.spawn_key == (1,)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["schedule"]


def test_a_schedule_may_be_empty(tmp_path: Path) -> None:
    schedule = simulate(NETWORK, time=1e-9, folder=tmp_path / "empty")
    assert schedule.rounds == 0
    assert schedule.pending_client.size == 30


def test_reading_what_is_not_a_schedule(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="not a schedule"):
        Schedule.read(tmp_path)
    simulate(NETWORK, rounds=100, folder=tmp_path / "s")
    np.save(tmp_path / "s" / "time.npy", np.zeros(7))
    with pytest.raises(InvalidFile, match="100 rounds"):
        Schedule.read(tmp_path / "s")
    np.save(tmp_path / "s" / "time.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InvalidFile, match=r"time\.npy"):
        Schedule.read(tmp_path / "s")
    (tmp_path / "s" / "schedule.json").write_text("{}")
    with pytest.raises(InvalidFile, match="format"):
        Schedule.read(tmp_path / "s")


def test_another_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(InvalidInput, match="not a schedule"):
        simulate(NETWORK, rounds=10, folder=tmp_path / "photos")


STREAM = """
import resource, sys
import sojourn as sj
fleet = sj.built_in_fleet("three-clusters")
network = sj.Network(fleet, sj.uniform_routing(fleet), 30)
sj.simulate(network, rounds=1000)
print("begun", flush=True)
sj.simulate(network, rounds=int(sys.argv[1]), folder=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_interrupting_leaves_nothing_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STREAM, "2000000000", str(tmp_path / "schedule")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    while not list(tmp_path.glob(".schedule.*/time.npy")):
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=240)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_hundred_million_rounds_in_constant_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STREAM, "100000000", str(tmp_path / "schedule")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.split()[-1]) < 2 << 30
    schedule = Schedule.read(tmp_path / "schedule")
    assert schedule.rounds == 100_000_000
    assert np.all(np.diff(schedule.time[::1_000_000]) > 0)


def test_mean_tasks_counts_tasks_at_the_ends_of_rounds() -> None:
    schedule = simulate(NETWORK, rounds=500, seed=2)
    state = np.zeros(30)
    tasks = list(zip(schedule.client, schedule.dispatched, range(500), strict=True))
    tasks += [
        (c, d, 500)
        for c, d in zip(schedule.pending_client, schedule.pending_dispatched, strict=True)
    ]
    for t in range(40, 500):
        for client, sent, end in tasks:
            state[client] += sent <= t < end
    np.testing.assert_allclose(schedule.mean_tasks(warm_up=40), state / 460, rtol=1e-12)


def test_policies_send_as_they_say() -> None:
    busy = simulate(NETWORK, rounds=2000, policy="never-queue")
    assert np.bincount(busy.pending_client, minlength=30).tolist() == [1] * 30
    small = Network(FLEET, uniform_routing(FLEET), 12)
    cohorts = simulate(small, rounds=1200, policy="synchronous")
    assert np.all(cohorts.dispatched == np.arange(1200) // 12 * 12)
    assert all(len(set(row)) == 12 for row in cohorts.client.reshape(100, 12).tolist())
    idle = simulate(small, rounds=2000, policy="idle")
    assert np.bincount(idle.pending_client).max() == 1
    shuffled = simulate(small, rounds=3000, policy="shuffled", law="deterministic")
    sent = np.full(3000 + 12, -1)
    first = 0
    for client, dispatched in zip(
        [*shuffled.client, *shuffled.pending_client],
        [*shuffled.dispatched, *shuffled.pending_dispatched],
        strict=True,
    ):
        if dispatched:
            sent[11 + dispatched] = client
        else:
            sent[first] = client
            first += 1
    assert all(len(set(row)) == 30 for row in sent[:3000].reshape(100, 30).tolist())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"law": "lognormall"}, UnknownName, "did you mean 'lognormal'"),
        ({"policy": "ruoted"}, UnknownName, "did you mean 'routed'"),
        ({"start": "stationery"}, UnknownName, "did you mean 'stationary'"),
        ({"rounds": 0}, InvalidInput, "at least 1; it is 0"),
        ({"rounds": 2.5}, InvalidInput, "whole number"),
        ({"rounds": None}, InvalidInput, "either rounds or time"),
        ({"rounds": None, "time": 0.0}, InvalidInput, "time must be positive"),
        ({"rounds": None, "time": -3.0}, InvalidInput, "time must be positive"),
        ({"time": 3.0}, InvalidInput, "either rounds or time"),
        ({"work": 0.0}, InvalidInput, "work must be positive"),
        ({"seed": -1}, InvalidInput, "seed must be"),
        ({"policy": "never-queue", "start": "stationary"}, InvalidInput, "'routed' only"),
        ({"start": [1, 2]}, InvalidInput, "30 whole numbers"),
        ({"start": [2] * 30}, InvalidInput, "concurrency = 30 tasks; it holds 60"),
    ],
    ids=str,
)
def test_bad_input(change: dict[str, object], error: type[Exception], words: str) -> None:
    settings: dict[str, object] = {"rounds": 10, **change}
    with pytest.raises(error, match=words):
        simulate(NETWORK, **settings)  # type: ignore[arg-type]


def test_idle_needs_idle_clients() -> None:
    crowded = Network(FLEET, uniform_routing(FLEET), 31)
    with pytest.raises(InvalidInput, match="at most the number of clients, 30; it is 31"):
        simulate(crowded, rounds=10, policy="idle")


def test_a_start_of_ones_own() -> None:
    state = [0] * 29 + [30]
    schedule = simulate(NETWORK, rounds=1, start=state)
    assert schedule.client.tolist() == [29]
    assert schedule.scenario.start_name == "given"


def test_warm_up_must_leave_something() -> None:
    with pytest.raises(InvalidInput, match="at least one of the 10 rounds"):
        simulate(NETWORK, rounds=10).throughput(warm_up=10)
    with pytest.raises(InvalidInput, match="replicates must be"):
        replicate(NETWORK, rounds=10, replicates=1)
