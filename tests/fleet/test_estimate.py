"""Rates, laws and classes from simulated logs, and logs with mistakes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet.from_logs import Durations, estimate_fleet, fit_law, read_log, read_tasks
from sojourn.fleet.laws import Law

LAWS = [
    Law("exponential"),
    Law("lognormal"),
    Law("lognormal", sigma=0.4),
    Law("gamma", shape=4.0),
    Law("weibull", shape=3.0),
    Law("weibull"),
    Law("deterministic"),
]


def observed(law: Law, rate: float, until: float, random: np.random.Generator) -> Durations:
    """What a device that works without a pause shows until then, its last task still running."""
    times = law.sample(random, int(2 * until * rate) + 50) / rate
    ends = np.cumsum(times)
    done = int(np.searchsorted(ends, until))
    begun = ends[done - 1] if done else 0.0
    return Durations(times[:done], np.array([until - begun]))


@pytest.mark.parametrize("devices", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_true_rate_lies_in_the_interval_and_the_law_is_named_right(devices: int) -> None:
    """Of 95 % of the devices, up to three standard deviations."""
    random = np.random.default_rng(5)
    inside = {str(law): [] for law in LAWS}
    named = {str(law): [] for law in LAWS}
    for law in LAWS:
        for _ in range(devices):
            rate = float(np.exp(random.normal(0.0, 1.5)))
            fit = fit_law(observed(law, rate, 200.0 / rate, random))
            named[str(law)].append(fit.law.name == law.name)
            inside[str(law)].append(fit.low <= 1.0 / rate <= fit.high)
    every = np.concatenate([inside[str(law)] for law in LAWS if law.name != "deterministic"])
    margin = 3.0 * np.sqrt(0.95 * 0.05 / every.size)
    assert abs(every.mean() - 0.95) <= margin, {k: np.mean(v) for k, v in inside.items()}
    assert np.mean(np.concatenate(list(named.values()))) >= 0.9, {
        k: np.mean(v) for k, v in named.items()
    }


def test_running_tasks_count() -> None:
    """Short records of slow devices: without running tasks rates would be far too high."""
    random = np.random.default_rng(6)
    estimates, naive = [], []
    for _ in range(100):
        parts = [observed(Law("exponential"), 1.0, 1.5, random) for _ in range(20)]
        seen = Durations.joined(parts)
        estimates.append(1.0 / fit_law(seen).mean)
        naive.append(1.0 / seen.finished.mean())
    assert np.mean(estimates) == pytest.approx(1.0, abs=0.05)
    assert np.mean(naive) > 1.3


def test_devices_of_like_speed_are_one_class() -> None:
    random = np.random.default_rng(7)
    seen = {
        f"d{i}": observed(Law("gamma", shape=2.0), (0.2, 1.0, 6.0)[i % 3], 300.0, random)
        for i in range(30)
    }
    fleet, classes = estimate_fleet(seen)
    assert fleet.counts.tolist() == [10, 10, 10]
    np.testing.assert_allclose(fleet.service_rates, [0.2, 1.0, 6.0], rtol=0.1)
    assert all(one.fit.law.name == "gamma" for one in classes)
    assert estimate_fleet(seen, grouped=False)[0].classes == 30
    with pytest.raises(InvalidInput, match="d99 has not finished a task"):
        estimate_fleet({**seen, "d99": Durations(np.zeros(0), np.array([3.0]))})


def test_log_of_intervals_and_of_durations(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("device,start,end\nx,0,2\ny,1,4\nx,2,\ny,4,9\n")
    seen = read_log(tmp_path / "a.csv")
    assert seen["x"].finished.tolist() == [2.0]
    assert seen["x"].running.tolist() == [7.0]
    assert seen["y"].finished.tolist() == [3.0, 5.0]
    assert read_log(tmp_path / "a.csv", now=12.0)["x"].running.tolist() == [10.0]
    (tmp_path / "b.csv").write_text("device,duration,running\nx,2,\nx,7,yes\n")
    assert read_log(tmp_path / "b.csv")["x"].running.tolist() == [7.0]


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("device,start,end\nx,0,2\nx,3,1\n", "1 task does not end after its start .first: line 3"),
        (
            "device,start,end\nx,0,2\nx,1,4\n",
            "1 task overlaps another of its device .first: line 3",
        ),
        (
            "device,start,end\nx,0,\nx,1,4\n",
            "1 end is missing, and the device began another task later .first: line 2",
        ),
        ("device,start,end\nx,,2\n", "1 start is missing .first: line 2"),
        ("device,start,end\n,1,2\n", "1 device is missing .first: line 2"),
        ("device,duration\nx,2\nx,two\n", "1 duration is not a number .first: line 3"),
        ("device,duration\nx,2\nx,1_0\n", "1 duration is not a number .first: line 3"),
        ("device,duration\nx,-2\n", "1 task does not end after its start .first: line 2"),
        ("device,duration\nx,1e40\n", "1 duration is outside 1e-30 to 1e.30 .first: line 2"),
        ("device,duration\nx\n", "1 number of fields is not 2 .first: line 2: x"),
        ("device,begin\nx,1\n", "begin"),
        ("device,start\nx,1\n", "either start and end or duration"),
        ("device,duration\n", "no tasks"),
    ],
)
def test_mistakes_in_a_log_are_told_with_their_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(InvalidFile, match=complaint):
        read_log(tmp_path / "log.csv")


def test_deployments_records(tmp_path: Path) -> None:
    records = [{"client": i % 2, "service_seconds": 1.0 + i} for i in range(4)]
    records.append({"client": 1, "service_seconds": None})
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, records)))
    seen = read_tasks(tmp_path / "tasks.jsonl", tmp_path / "status.json")
    assert seen["1"].finished.tolist() == [2.0, 4.0]
    for line in ("{}", "[]", '{"client": 1, "service_seconds": "x"}', "[" * 5000):
        (tmp_path / "tasks.jsonl").write_text(f"{line}\n")
        with pytest.raises(InvalidFile, match=r"tasks.jsonl, line 1: "):
            read_tasks(tmp_path / "tasks.jsonl", tmp_path / "status.json")


def test_work_too_short_for_the_clock_and_tasks_on_their_way_do_not_hide_a_link(
    tmp_path: Path,
) -> None:
    """Records of 0 s of work are rounded; where a running task is, nobody knows."""
    records = [
        {"client": 0, "service_seconds": 0.5 + i / 100, "computing_seconds": 0.001 * (i % 2)}
        for i in range(10)
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "status.json").write_text('{"clients": [{"number": 0, "running": 9.0}]}')
    seen = read_tasks(tmp_path / "tasks.jsonl", tmp_path / "status.json")["0"]
    assert set(seen.finished.tolist()) == {0.0001, 0.001}
    assert seen.running.size == 0
    assert (seen.downlink > 0.24).all()


def test_a_likelihood_with_two_peaks_has_an_interval() -> None:
    """Seen in a run whose tasks took a millisecond, and one of which was 10 s on its way."""
    times = np.array([0.001] * 9 + [0.007, 0.015, 0.016])
    fit = fit_law(Durations(times, np.array([10.301])))
    assert 0.0 < fit.low < fit.mean < fit.high < np.inf


def test_pipes_and_absurd_times_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InvalidFile, match="not a plain file"):
        read_log(tmp_path / "pipe.csv")
    (tmp_path / "log.csv").write_text("device,start,end\nx,0,1\nx,1,\n")
    with pytest.raises(InvalidFile, match=r"1 duration is outside 1e-30 to 1e.30 .first: line 3"):
        read_log(tmp_path / "log.csv", now=1e308)
