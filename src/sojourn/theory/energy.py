"""What a round costs in energy: the powers of a fleet times how long each is drawn."""

from sojourn._support.checks import check_number
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network
from sojourn.theory.bounds import Penalties, Sum, penalties
from sojourn.types import FloatArray

POWERS = ("power_compute", "power_uplink", "power_downlink", "power_idle")
LARGEST_POWER = 1e30
"""As for the powers of a fleet."""


def has_powers(fleet: Fleet) -> bool:
    """Whether the energy of a round can be computed."""
    return any(getattr(fleet, name) is not None for name in POWERS)


def powers(fleet: Fleet) -> tuple[FloatArray, ...]:
    """The columns ``POWERS``, zeros for those left out; ``InvalidInput`` if all are."""
    if not has_powers(fleet):
        raise InvalidInput(
            f"the fleet has no powers: give it one of the columns {', '.join(POWERS)}"
        )
    return tuple(fleet.column(name) for name in POWERS)


class RoundEnergy(Sum):
    """Mean energy of a round, its gradient in the routing (shape ``(k,)``), and its parts by name."""


def energy_per_round(network: Network, *, server_power: float = 0.0) -> RoundEnergy:
    r"""Mean energy that clients and server use in a round, in steady state.

    .. math:: e = \sum_i c_i p_i \Bigl(\frac{P^c_i}{\mu_i} + P^u_i u_i + P^d_i d_i\Bigr)
              + \sum_i c_i P^\mathrm{idle}_i \frac{1 - \lambda \rho_i}{\lambda} + \frac{P_s}{\mu_s}

    The fleet's columns are :math:`P^c` (``power_compute``), :math:`P^u` and :math:`P^d`
    (``power_uplink`` and ``power_downlink``, drawn for each task on a link) and
    :math:`P^\mathrm{idle}` (``power_idle``, drawn by a client that does not compute, whatever its
    links do); those left out count as zero. ``server_power`` is :math:`P_s`. Energy is in units of
    power times time. Without idle power :math:`e` does not depend on the concurrency. The gradient
    is that of one client of each class, as for the bounds. Cost: one steady state. Not in the paper.

    >>> from sojourn.fleet import Fleet, uniform_routing
    >>> fleet = Fleet([1.0, 4.0], uplink=[0.5, 0.5], power_compute=[2.0, 8.0],
    ...               power_uplink=[1.0, 1.0], power_idle=[0.1, 0.1])
    >>> energy_per_round(Network(fleet, uniform_routing(fleet), 1))
    RoundEnergy(2.6625: compute 2, uplink 0.5, downlink 0, idle 0.1625, server 0)
    """
    return round_energy(penalties(network), server_power=server_power)


def round_energy(s: Penalties, *, server_power: float = 0.0) -> RoundEnergy:
    """``energy_per_round`` of a network whose penalties are known."""
    network, fleet = s.network, s.network.fleet
    compute, uplink, downlink, idle = powers(fleet)
    server = check_number("server_power", server_power, least=0.0, most=LARGEST_POWER)
    work = 1.0 / fleet.service_rates
    per_task = {
        "compute": compute * work,
        "uplink": uplink * fleet.column("uplink"),
        "downlink": downlink * fleet.column("downlink"),
    }
    mass = fleet.counts * network.routing
    terms = {name: float(mass @ energy) for name, energy in per_task.items()}
    all_idle = float(fleet.counts @ idle) / s.throughput
    # Of the idle power of a whole round, what would be drawn while computing.
    not_idle = idle * work
    terms["idle"] = max(all_idle - float(mass @ not_idle), 0.0)
    terms["server"] = 0.0 if network.server_rate is None else server / network.server_rate
    gradient = per_task["compute"] + per_task["uplink"] + per_task["downlink"] - not_idle
    return RoundEnergy(
        value=sum(terms.values()),
        gradient=gradient - all_idle * s.log_throughput_gradient,
        terms=terms,
    )
