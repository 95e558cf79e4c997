"""Fleets and hours from the files of devices that other simulators take.

FedScale's traces are pickles, which can run code when they are read: here only numbers, texts,
lists, tuples and dicts are taken in, and whatever names a class or a function is refused. APPFL's
virtual-time simulator takes JSON with ``--het_json``, which maps clients, numbered from 0, to
``delay``, by which a client is slower than the machine that steps were timed on, and ``bandwidth`` in
megabits per second.
"""

import hashlib
import math
import os
import pickle
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Never

from sojourn._support.checks import check_number
from sojourn._support.configuration import check_shape, parse_json
from sojourn._support.files import read_text
from sojourn.errors import InvalidFile, InvalidInput, reading
from sojourn.fleet import Fleet
from sojourn.fleet.calendars import Hours

BYTES_PER_KILOBIT = 128.0
"""FedScale's model sizes in kilobits are bytes times 8 over 1024."""
PASSES = 3.0
"""FedScale counts a training step as three times the inference whose time its capacities tell."""


def read_capacity(
    path: str | os.PathLike[str],
    *,
    samples: int,
    kilobits: float,
) -> tuple[Fleet, str]:
    r"""The fleet of a ``client_device_capacity`` file, a client per device, and its SHA-256.

    The file maps devices to ``computation`` (milliseconds per sample) and ``communication`` (kilobits
    per second). A task goes through ``samples`` samples and sends a model of ``kilobits`` each way, so
    that, in seconds, :math:`1/\mu = 3 \cdot \mathrm{samples} \cdot \mathrm{computation}/1000`, and both
    links take ``kilobits/communication``.
    """
    check_number("samples", samples, above=0)
    check_number("kilobits", kilobits, least=0)
    devices, checksum = _read(path)
    work, link = [], []
    for name, device in devices.items():
        where = f"{path}: device {name}"
        work.append(_positive(device, "computation", where))
        link.append(kilobits / _positive(device, "communication", where))
    rates = [1000.0 / (PASSES * samples * x) for x in work]
    names = [str(name) for name in devices]
    with reading(path):
        return Fleet(rates, names=names, downlink=link, uplink=link), checksum


def read_behaviour(path: str | os.PathLike[str]) -> tuple[Hours, str]:
    """The hours of a ``client_behave_trace`` file, and its SHA-256.

    The file maps devices to the times at which they become ``active`` and ``inactive``, in turn, and
    to the ``finish_time`` after which these repeat. The hours repeat after the longest one, until
    when devices with a shorter one begin again.
    """
    devices, checksum = _read(path)
    period = max(_positive(x, "finish_time", f"{path}: device {n}") for n, x in devices.items())
    hours = []
    for name, device in devices.items():
        where = f"{path}: device {name}"
        own = _positive(device, "finish_time", where)
        there, away = (_times(device, key, where) for key in ("active", "inactive"))
        # A device that becomes inactive first was there from the beginning.
        if away and (not there or away[0] < there[0]):
            there = [0.0, *there]
        away = [*away, *([own] if len(there) > len(away) else [])]
        if len(there) != len(away):
            raise InvalidFile(f"{where}: active and inactive do not take turns")
        hours.append(_repeated(list(zip(there, away, strict=True)), own, period))
    with reading(path):
        return Hours(hours, period), checksum


def _repeated(
    intervals: list[tuple[float, float]], own: float, period: float
) -> list[tuple[float, float]]:
    """Intervals that repeat after ``own``, until ``period``; those that touch are one.

    >>> _repeated([(0.0, 3.0), (6.0, 12.0)], 12.0, 20.0)
    [(0.0, 3.0), (6.0, 15.0), (18.0, 20.0)]
    """
    found: list[tuple[float, float]] = []
    for number in range(math.ceil(period / own)):
        for begin, end in intervals:
            a, b = begin + number * own, min(end + number * own, period)
            if found and a == found[-1][1]:
                found[-1] = (found[-1][0], b)
            elif a < b:
                found.append((a, b))
    return found


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _read(path: str | os.PathLike[str]) -> tuple[dict[object, Mapping[str, object]], str]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error
    try:
        found = _Plain(BytesIO(data)).load()
    except Exception as error:
        raise InvalidFile(
            f"{path}: not a pickle of numbers, texts, lists and dicts alone ({error}): it is not read"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(x, dict) for x in found.values()):
        raise InvalidFile(f"{path}: it must map devices to what is known of them")
    if not found:
        raise InvalidFile(f"{path}: there are no devices")
    return found, hashlib.sha256(data).hexdigest()


def _positive(device: Mapping[str, object], key: str, where: str) -> float:
    with reading(where):
        return check_number(f"'{key}'", device.get(key), above=0.0)


def _times(device: Mapping[str, object], key: str, where: str) -> list[float]:
    values = device.get(key)
    if not isinstance(values, list):
        raise InvalidFile(f"{where}: '{key}' must be a list of times")
    with reading(where):
        return [check_number(f"'{key}'", value) for value in values]


MEGABIT = 1024.0**2
"""APPFL's, in bits."""
PROFILE = {"delay": float, "bandwidth": float}


def read_profiles(
    path: str | os.PathLike[str],
    *,
    step_seconds: float,
    steps: int = 1,
    model_bytes: float = 0.0,
) -> tuple[Fleet, str]:
    r"""The fleet of a file of profiles, a client per entry, and the file's SHA-256.

    As there, in seconds, :math:`1/\mu = \mathrm{step\_seconds} \cdot \mathrm{steps} \cdot
    \mathrm{delay}`, and both links take ``model_bytes`` :math:`\cdot\, 8/2^{20}/\mathrm{bandwidth}`;
    a bandwidth of 0 or below means that they take no time.
    """
    seconds = check_number("step_seconds", step_seconds, above=0)
    number = check_number("steps", steps, above=0)
    megabits = check_number("model_bytes", model_bytes, least=0) * 8.0 / MEGABIT
    text = read_text(path, encoding="utf-8")
    profiles = parse_json(text, str(path))
    clients = _in_order(profiles, path)
    rates, links = [], []
    for client in clients:
        profile, where = profiles[str(client)], f"{path}: client {client}"
        check_shape(profile, PROFILE, where)
        if not profile["delay"] > 0:
            raise InvalidFile(f"{where}: 'delay' must be above 0; it is {profile['delay']!r:.40}")
        rates.append(1.0 / (seconds * number * profile["delay"]))
        wide = profile["bandwidth"]
        links.append(megabits / wide if wide > 0 else 0.0)
    try:
        fleet = Fleet(rates, names=[str(c) for c in clients], downlink=links, uplink=links)
    except (InvalidInput, OverflowError) as error:
        raise InvalidFile(f"{path}: {error}") from error
    return fleet, hashlib.sha256(text.encode()).hexdigest()


def _in_order(profiles: object, path: object) -> range:
    """The numbers of the clients, which must be those from 0 on."""
    if not isinstance(profiles, dict) or not profiles:
        raise InvalidFile(
            f"{path}: it must map clients, numbered from 0, to their 'delay' and 'bandwidth'"
        )
    for number in range(len(profiles)):
        if str(number) not in profiles:
            other = next(key for key in profiles if not key.isdecimal() or int(key) >= number)
            raise InvalidFile(
                f"{path}: {len(profiles)} clients must be called 0 to {len(profiles) - 1}; there is "
                f"'{other[:40]}' and no '{number}'"
            )
    return range(len(profiles))
