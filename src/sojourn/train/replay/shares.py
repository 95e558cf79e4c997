"""How often each client of a schedule is heard, as far as the server could know at dispatch."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.rules import Rule, Weighting
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule


def shares_and_divisors(
    schedule: "Schedule", rule: Rule, client_weights: ArrayLike | None = None
) -> tuple[FloatArray, FloatArray]:
    r"""Share and divisor of every completed task, as of its dispatch: both of shape ``(rounds,)``.

    The long-run share is used where it is known, and otherwise the share in the tasks sent before.
    Tasks sent at one instant are taken in order of clients. With ``client_weights``
    :math:`n_i/N` a client's updates count :math:`n \, n_i / N` times as much.
    """
    shares, divisors = _shares_and_divisors(schedule, rule)
    if client_weights is None:
        return shares, divisors
    scale = relative_weights(client_weights, schedule.network.size)
    return shares, divisors / scale[np.asarray(schedule.client)]


def relative_weights(client_weights: ArrayLike, clients: int) -> FloatArray:
    """Weights of clients, rescaled to mean 1: ``(n,)``.

    >>> relative_weights([1, 3], 2).tolist()
    [0.5, 1.5]
    """
    weights = np.asarray(client_weights, dtype=np.float64)
    if weights.shape != (clients,) or not np.all(np.isfinite(weights) & (weights > 0)):
        raise InvalidInput(
            f"client_weights must be {clients} positive numbers, one per client; they have shape "
            f"{weights.shape}"
        )
    return weights / weights.mean()


def _shares_and_divisors(schedule: "Schedule", rule: Rule) -> tuple[FloatArray, FloatArray]:
    weighting: Weighting = getattr(rule, "weighting", Weighting())
    shares = schedule.shares
    client, n = np.asarray(schedule.client), schedule.network.size
    if shares is not None:
        return shares[client], weighting.divisors(shares)[client]
    clients = np.concatenate([client, schedule.pending_client])
    dispatched = np.concatenate([schedule.dispatched, schedule.pending_dispatched])
    order = np.lexsort((clients, dispatched))
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    realised, divisors = weighting.realised(clients[order], n)
    return realised[place[: client.size]], divisors[place[: client.size]]
