"""Fleets from the client profiles of APPFL's virtual-time simulator.

The JSON that it takes with ``--het_json`` maps clients, numbered from 0, to ``delay``, by which a
client is slower than the machine that steps were timed on, and ``bandwidth`` in megabits per second.
"""

import hashlib
import os
from typing import Any

from sojourn.checks import check_number
from sojourn.config import check_shape, parse_json
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.files import read_text
from sojourn.network import Fleet

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


def _in_order(profiles: Any, path: object) -> range:
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
