"""Observed service times from a CSV file, as a service-time law."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sojourn._support.csv_table import class_in, number_in, read_csv
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Fleet
from sojourn.fleet.laws import LawLike, Laws, ServiceLaw, Trace, as_laws
from sojourn.types import FloatArray


def read_laws(
    given: Laws, fleet: Fleet, where: str = "law", folder: Path | None = None
) -> tuple[ServiceLaw, ...]:
    """`as_laws`, where ``{"name": "trace", "file": "durations.csv"}`` is a law, too.

    Files and modules are sought in ``folder``.

    >>> read_laws(["deterministic", "exponential"], Fleet([1.0, 2.0]))
    (Law('deterministic'), Law('exponential'))
    """
    if not isinstance(given, list | tuple):
        return _observed(given, fleet, folder) or as_laws(given, where, folder)
    laws: list[LawLike] = []
    for k, one in enumerate(given):
        traces = _observed(one, fleet, folder)
        laws.append(traces[k % len(traces)] if traces else one)
    return as_laws(laws, where, folder)


def _observed(given: object, fleet: Fleet, folder: Path | None) -> tuple[Trace, ...]:
    """The durations in the file that a table names, if it names one."""
    if not isinstance(given, Mapping) or given.get("name") != "trace" or "file" not in given:
        return ()
    if set(given) != {"name", "file"}:
        raise InvalidInput(f"a trace is {{name, file}} and nothing else; it is {dict(given)}")
    return read_trace((folder or Path()) / str(given["file"]), fleet)


SHORTEST, LONGEST = 1e-100, 1e100
"""Durations between which sums and ratios do not overflow."""


def read_trace(path: str | os.PathLike[str], fleet: Fleet) -> tuple[Trace, ...]:
    """Durations observed, in a column ``duration``, as laws to draw from with replacement.

    A column ``class`` says to which class of the fleet each belongs, by name or number (from 1);
    without it all classes share the durations, and one law. Each class is rescaled so that its mean stays
    1/mu: the trace gives the shape, the fleet the speed; `trace_factors` says by how much, and
    `trace_fleet` takes the speeds from the trace. A missing, negative or unreadable duration
    raises ``InvalidFile`` with its line.
    """
    rows = list(read_csv(path, ("class", "duration"), required=["duration"]).rows())
    by_class = bool(rows) and "class" in rows[0][1]
    labels = [fleet.label(k) for k in range(fleet.classes)]
    observed: list[list[float]] = [[] for _ in labels] if by_class else [[]]
    for where, fields in rows:
        k = class_in(fields["class"], labels, where) if by_class else 0
        observed[k].append(_duration(fields["duration"], where))
    for k, durations in enumerate(observed):
        if not durations:
            whom = f" for {labels[k]}" if by_class else ""
            raise InvalidFile(f"{path}: there are no durations{whom}")
    return tuple(Trace(durations) for durations in observed)


def trace_factors(fleet: Fleet, laws: Sequence[Trace]) -> FloatArray:
    r"""What the durations of every class are multiplied by to have the fleet's speed.

    .. math:: 1 / (\mu_k \bar d_k)

    for a mean duration :math:`\bar d_k`; ``(k,)``. A factor of 1 leaves them as they were observed.

    >>> trace_factors(Fleet([1.0]), [Trace([4.0, 6.0])]).tolist()
    [0.2]
    """
    return np.asarray(1.0 / (fleet.service_rates * _means(fleet, laws)))


def trace_fleet(fleet: Fleet, laws: Sequence[Trace]) -> Fleet:
    """The fleet at the speeds in the trace, a service rate of one over the mean duration; else as it is.

    >>> trace_fleet(Fleet([1.0], uplink=[0.5]), [Trace([4.0, 6.0])]).service_rates.tolist()
    [0.2]
    """
    return fleet.with_rates(1.0 / _means(fleet, laws))


def _means(fleet: Fleet, laws: Sequence[Trace]) -> FloatArray:
    return np.broadcast_to([law.mean for law in laws], (fleet.classes,))


def _duration(field: str, where: str) -> float:
    value = number_in(field, "duration", where)
    if value <= 0:
        raise InvalidFile(f"{where}: the duration must be positive; it is {value:g}")
    if not SHORTEST <= value <= LONGEST:
        raise InvalidFile(
            f"{where}: the duration must lie between {SHORTEST:g} and {LONGEST:g}; it is {value:g}"
        )
    return value
