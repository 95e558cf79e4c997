"""APPFL's client profiles: what they say, and what is refused."""

import hashlib
import json

import pytest

from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet.from_logs.simulators import read_profiles


def written(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_profiles(tmp_path):
    """Step time times steps times delay; the model's bits over the bandwidth, each way."""
    profiles = {str(i): {"delay": 1.0 + 49.0 * i, "bandwidth": 20.0 * i} for i in range(11)}
    path = written(tmp_path / "het.json", profiles)
    fleet, checksum = read_profiles(path, step_seconds=0.02, steps=5, model_bytes=5 * 2**20)
    assert fleet.names == tuple(map(str, range(11)))
    assert fleet.service_rates[1] == pytest.approx(1 / (0.02 * 5 * 50.0))
    assert fleet.downlink.tolist() == fleet.uplink.tolist()
    assert fleet.uplink[:3].tolist() == [0.0, 2.0, 1.0]
    assert checksum == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "value, complaint",
    [
        ("{", "not valid JSON"),
        ([1], "must map clients"),
        ({}, "must map clients"),
        ({"0": {"delay": 1.0}}, "client 0: bandwidth is missing"),
        ({"0": {"delay": "1", "bandwidth": 3}}, "delay must be a number; it is '1'"),
        ({"0": {"delay": 0, "bandwidth": 3}}, "'delay' must be above 0; it is 0"),
        ({"0": [1, 2]}, "client 0: what it holds must be a table"),
        ({"0": {"delay": 1, "bandwidth": 3}, "Client2": {}}, "'Client2' and no '1'"),
        ('{"0": {"delay": NaN, "bandwidth": 3}}', "delay must be a number"),
        ({"0": {"delay": 1e308, "bandwidth": 3}}, "service_rates must be positive"),
    ],
)
def test_mistakes_are_told(tmp_path, value, complaint):
    with pytest.raises(InvalidFile, match=complaint):
        read_profiles(written(tmp_path / "het.json", value), step_seconds=1e3)
    with pytest.raises(InvalidInput, match="step_seconds"):
        read_profiles(tmp_path / "het.json", step_seconds=0.0)
