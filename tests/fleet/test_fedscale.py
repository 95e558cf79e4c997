"""FedScale's traces: what they say, and that they run nothing."""

import hashlib
import os
import pickle
from pathlib import Path

import pytest

from sojourn.errors import InvalidFile
from sojourn.fleet.from_logs.simulators import read_behaviour, read_capacity


def written(path: Path, value: object) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


def test_capacity(tmp_path: Path) -> None:
    path = written(
        tmp_path / "capacity",
        {1: {"computation": 50.0, "communication": 2000.0}, 7: {"computation": 10, "communication": 500.0}},
    )  # fmt: skip
    fleet, checksum = read_capacity(path, samples=20, kilobits=1000.0)
    assert fleet.service_rates.tolist() == pytest.approx([1 / 3.0, 1 / 0.6])
    assert fleet.downlink.tolist() == fleet.uplink.tolist() == [0.5, 2.0]
    assert fleet.names == ("1", "7")
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()


def test_behaviour(tmp_path: Path) -> None:
    trace = {
        1: {
            "active": [2, 10],
            "inactive": [5, 24],
            "finish_time": 24,
            "model": "x",
            "duration": 17,
        },
        2: {"active": [6.0], "inactive": [3.0], "finish_time": 12.0},
    }
    hours, _ = read_behaviour(written(tmp_path / "trace", trace))
    assert hours.period == 24.0
    assert hours.devices == (((2.0, 5.0), (10.0, 24.0)), ((0.0, 3.0), (6.0, 15.0), (18.0, 24.0)))


class _Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harm",)


def test_nothing_is_run_and_mistakes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidFile, match=r"numbers, texts, lists and dicts alone.*mkdir"):
        read_capacity(written(tmp_path / "a", {1: _Harm()}), samples=1, kilobits=1)
    assert not (tmp_path / "harm").exists()
    for value, complaint in (
        ([1], "must map devices"),
        ({}, "no devices"),
        ({3: {"computation": -1, "communication": 1}}, "device 3: 'computation' must be"),
        ({3: {"computation": 1}}, "'communication' must be a finite number; it is None"),
        (
            {3: {"computation": 10**400, "communication": 1}},
            "'computation' must be a finite number",
        ),
        ({3: {"computation": 10**5000, "communication": 1}}, "thousands of digits"),
    ):
        with pytest.raises(InvalidFile, match=complaint):
            read_capacity(written(tmp_path / "b", value), samples=1, kilobits=1)
    for value, complaint in (
        ({3: {"active": 1, "inactive": [], "finish_time": 9}}, "'active' must be a list"),
        (
            {3: {"active": [10**400], "inactive": [2], "finish_time": 9}},
            "'active' must be a finite",
        ),
        ({3: {"active": [1, 2, 3], "inactive": [2], "finish_time": 9}}, "do not take turns"),
        ({3: {"active": [], "inactive": [], "finish_time": 9}}, "never there"),
    ):
        with pytest.raises(InvalidFile, match=complaint):
            read_behaviour(written(tmp_path / "c", value))
    (tmp_path / "d").write_text("no pickle")
    with pytest.raises(InvalidFile, match="not a pickle"):
        read_behaviour(tmp_path / "d")
