"""Arrivals by the handful, and the states that a rule makes of them."""

import numpy as np

from sojourn.rules import Arrival


def run(
    rule,
    start,
    arrivals,
    *,
    clients=4,
    learning_rate=0.5,
    concurrency=2,
    dtype=np.float64,
):
    """Apply ``arrivals``, each a dict of an `Arrival`'s fields: (weights, version, used) of each.

    ``update`` is a number or a list; ``sent`` is the start, ``client`` 0 and ``staleness`` 0 unless
    given. What a rule keeps may change in place, so only the last whole state is returned, too.
    """
    state = rule.begin(np.array(start, dtype=dtype), clients)
    seen = []
    for given in arrivals:
        fields = {"sent": start, "client": 0, "staleness": 0, "share": 0.25, **given}
        for name in ("update", "sent"):
            fields[name] = np.atleast_1d(np.array(fields[name], dtype=dtype))
        state, used = rule.apply(
            state,
            Arrival(**fields),
            learning_rate=learning_rate,
            clients=clients,
            concurrency=concurrency,
        )
        seen.append((state.weights.tolist(), state.version, used))
    return seen, state


def weights(seen):
    return [entry[0] for entry in seen]


def versions(seen):
    return [entry[1] for entry in seen]


def uses(seen):
    return [entry[2] for entry in seen]
