r"""The least noise of any policy that lets started tasks finish, and the rates that attain it.

With m tasks in flight client i completes tasks at a rate :math:`r_i \le \mu_i`, and
:math:`\sum_i r_i/\mu_i \le m`, because a task that is being served occupies its client for
:math:`1/\mu_i` on average and tasks that wait occupy nobody (Little's law). Whatever the law of the
service times, under every policy that lets a started task finish the noise of unbiased updates per
time unit is therefore at least what these two constraints allow.

*Links.* A task occupies one of the m places for :math:`\tau_i = 1/\mu_i + d_i + u_i`, so the second
constraint is :math:`\sum_i r_i \tau_i \le m`, and the first stays if a client may compute while
other tasks of its are on their way: one in service and one on the way keep it busy. With one task
each, journeys included, it is :math:`r_i \le 1/\tau_i`. A server that takes time only lowers the rates.

*Local work.* A task of ``work`` :math:`H_i` gradients takes :math:`\tau_i = H_i/\mu_i + d_i + u_i` and
brings :math:`H_i` times the information: noise enters at :math:`\omega_i^2/(H_i r_i)`.

*Absences.* A client that is there a share :math:`a_i` of the time, while its work waits for it
otherwise, has :math:`a_i \mu_i` in place of :math:`\mu_i` throughout: it cannot compute more, and a
task that was started holds its place while its client is away.

*Stopping.* A policy that may stop a task and start a fresh one completes at most
:math:`\mu^*_i = \mu_i \sup_a F(a)/(c_i + E\min(S, a))` tasks per time unit that it computes,
where :math:`F` is the law of :math:`S` (of mean 1) and :math:`c_i` what a fresh start costs, in mean
service times. So the floor holds with :math:`\mu^*` in place of :math:`\mu` (`best_patience`). With links a
fresh start costs the downlink, too, while only the attempt that completes takes the uplink: a place
completes at most :math:`1/(u_i + 1/\mu^*_i)` tasks per time unit, :math:`\mu^*_i` being that of
:math:`c_i + \mu_i d_i`. It needs fresh attempts to draw fresh times, which do not depend on the task's
data, and link times that stopping does not shorten, such as exponential or constant ones.
Where starts cost nothing and the hazard rate falls from the beginning, the supremum is the density at 0,
approached as :math:`a \to 0`: finite for hyperexponential times, where the floor is a limit that no policy
attains, and infinite for Weibull and gamma times of shape below 1, where the floor is 0.

Where clients do not count the same, :math:`\omega_i` is ``Fleet.relative_weights``; otherwise it is 1.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.checks import check_number
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, check_concurrency
from sojourn.fleet.laws import Law, LawLike, Laws, ServiceLaw, Trace, as_laws, fast_share
from sojourn.types import FloatArray

SAMPLES = 200_000
"""Times drawn of a law whose distribution function is not known."""
LEAST_GAIN = 1e-6
"""By which stopping must be faster than waiting to be worth it: less may be rounding."""
SURE = 4.0
"""Standard errors by which it must be faster where the law is sampled."""
POINTS = 200_001
"""Times at which to stop that are tried for a law whose distribution function is known."""


def duty_cycles(fleet: Fleet, concurrency: int, work: ArrayLike = 1.0) -> FloatArray:
    r"""The fraction of time that a client of each class has a task at the least noise, one task each.

    .. math:: d_i = \min(1, c\,\omega_i\sqrt{\tau_i/H_i}), \qquad \sum_i d_i = \min(m, n)

    where :math:`\tau_i/H_i = 1/\mu_i` without links; the solution of
    :math:`\min \sum_i \omega_i^2 \tau_i/(d_i H_i)` by water-filling; shape ``(k,)``. ``work`` is
    :math:`H`, one number or one per class. With m >= n everybody is always busy. Cost: O(k log k).

    >>> duty_cycles(Fleet([1.0, 4.0]), 1).round(6).tolist()
    [0.666667, 0.333333]
    >>> duty_cycles(Fleet([1.0, 4.0]), 2).tolist()
    [1.0, 1.0]
    """
    m = check_concurrency(concurrency)
    if m >= fleet.size:
        return np.ones(fleet.classes)
    speeds = _work(fleet, work) * round_trip_rates(fleet, work)
    return _filled(fleet, speeds, m)


def _filled(fleet: Fleet, speeds: FloatArray, m: int) -> FloatArray:
    """Water-filling: duty cycles where a busy client delivers ``speeds`` gradients per time unit."""
    weights = fleet.relative_weights
    order = np.argsort(speeds / weights**2, kind="stable")
    root = np.sqrt(speeds[order]) / weights[order]
    counts = fleet.counts[order].astype(np.float64)
    full = np.cumsum(counts) - counts
    tail = np.cumsum((counts / root)[::-1])[::-1]
    level = (m - full) / tail
    # The slowest classes are full; the first class that the level does not fill ends them.
    first = int(np.argmax((level < root) & (level > 0)))
    cycles = np.empty(fleet.classes)
    cycles[order] = np.minimum(1.0, level[first] / root)
    return cycles


def round_trip_rates(fleet: Fleet, work: ArrayLike = 1.0) -> FloatArray:
    r"""Tasks per time unit of a client that always has exactly one, :math:`1/\tau_i`.

    >>> round_trip_rates(Fleet([1.0, 4.0], downlink=[0.0, 0.5], uplink=[1.0, 0.25])).tolist()
    [0.5, 1.0]
    >>> round_trip_rates(Fleet([1.0, 4.0], uplink=[1.0, 1.0]), work=[1, 4]).tolist()
    [0.5, 0.5]
    """
    speeds = fleet.effective_rates / _work(fleet, work)
    links = fleet.link_times
    return speeds if links is None else np.asarray(1.0 / (1.0 / speeds + links))


def target_rates(fleet: Fleet, concurrency: int, work: ArrayLike = 1.0) -> FloatArray:
    r"""Tasks per time unit of a client at the least noise, one task each, :math:`r_i = d_i/\tau_i`."""
    return duty_cycles(fleet, concurrency, work) * round_trip_rates(fleet, work)


def noise_rate(fleet: Fleet, rates: FloatArray, work: ArrayLike = 1.0) -> float:
    r"""How fast gradient noise enters when clients complete tasks at ``rates``.

    .. math:: \nu = \frac{1}{n^2} \sum_i \frac{\omega_i^2}{H_i r_i}

    Unbiased updates that move the mean at speed :math:`\gamma` bring noise at rate
    :math:`\gamma^2 \nu \sigma^2`. For routed tasks :math:`r_i = \lambda p_i`. ``work`` is :math:`H`, the
    gradients of a task, one number or one per class.
    """
    worth = fleet.relative_weights**2
    return float(fleet.counts @ (worth / (_work(fleet, work) * rates))) / float(fleet.size) ** 2


def noise_floor(
    fleet: Fleet,
    concurrency: int,
    *,
    work: ArrayLike = 1.0,
    stopping: Laws | None = None,
    restart_cost: float = 0.0,
) -> float:
    r"""The least noise rate of policies that let all of ``concurrency`` started tasks finish.

    .. math:: \nu \ge \frac{1}{n^2} \sum_i \frac{\omega_i^2}{d_i \mu_i}

    with :math:`d` from `duty_cycles`, for every law of the service times and every policy that lets
    started tasks finish. ``never-queue`` attains it. With links and ``work`` :math:`H` it is
    :math:`\sum_i \omega_i^2/g_i` at :math:`g_i = H_i r_i = \min(\mu_i, c\,\omega_i \sqrt{H_i/\tau_i})`,
    :math:`\sum_i r_i \tau_i \le m`; ``never-queue``, with one task for each client, comes to
    ``noise_rate`` of its ``target_rates``.

    With ``stopping``, the law of the service times (or one per class), it is that of policies which may
    also stop a task and start a fresh one, at ``restart_cost`` mean service times: see this module.
    ``never-queue`` with the ``patience`` of `best_patience` attains it where there are no links. Where
    that patience is 0, shorter ones come as close as one likes.

    >>> from sojourn.fleet import built_in_fleet
    >>> fleet = built_in_fleet("three-clusters")
    >>> [round(noise_floor(fleet, m), 4) for m in (1, 10, 20, 30)]
    [22.2856, 2.2286, 1.3036, 1.2333]
    >>> round(noise_floor(fleet, 30, stopping="lognormal"), 4)
    1.1004
    >>> round(noise_floor(fleet, 30, stopping="hyperexponential") / noise_floor(fleet, 30), 4)
    0.625
    """
    m, steps = check_concurrency(concurrency), _work(fleet, work)
    most, speeds = fleet.effective_rates, steps * round_trip_rates(fleet, work)
    links = fleet.link_times
    check_number("restart_cost", restart_cost, least=0.0)
    if stopping is not None:
        most, speeds = _stopped(fleet, steps, as_laws(stopping, "stopping"), restart_cost)
    if links is None:
        cycles = np.ones(fleet.classes) if m >= fleet.size else _filled(fleet, speeds, m)
        return noise_rate(fleet, cycles * speeds)
    weights = fleet.relative_weights
    order = np.argsort(most / np.sqrt(speeds) / weights, kind="stable")
    caps, trips, weights = most[order], 1.0 / speeds[order], weights[order]
    counts = fleet.counts[order].astype(np.float64)
    full = np.cumsum(counts * caps * trips)
    if full[-1] <= m:
        return noise_rate(fleet, most)
    tail = np.cumsum((counts * np.sqrt(trips) * weights)[::-1])[::-1]
    level = (m - np.concatenate([[0.0], full[:-1]])) / tail
    first = int(np.argmax(level * weights < caps * np.sqrt(trips)))
    rates = np.empty(fleet.classes)
    rates[order] = np.minimum(caps, level[first] * weights / np.sqrt(trips))
    return noise_rate(fleet, rates)


def _stopped(
    fleet: Fleet,
    steps: FloatArray,
    laws: tuple[ServiceLaw, ...],
    restart_cost: float,
) -> tuple[FloatArray, FloatArray]:
    """Gradients per time unit that a client computes, and that a place in flight delivers."""
    if len(laws) not in (1, fleet.classes):
        raise InvalidInput(
            f"stopping must be one law or one for each of the {fleet.classes} classes; there are "
            f"{len(laws)}"
        )
    speeds = fleet.effective_rates
    down, up = (fleet.column(link) * speeds / steps for link in ("downlink", "uplink"))
    found = []
    for k in range(fleet.classes):
        law = laws[k if len(laws) > 1 else 0]
        computing = _fastest(law, restart_cost).rate
        # Journeys bound what a place delivers, also where nothing bounds what a client completes.
        waiting = up[k] + 1.0 / _fastest(law, restart_cost + float(down[k])).rate
        if waiting == 0.0:
            raise _without_floor(law)
        found.append([computing, 1.0 / waiting])
    computing, delivering = np.array(found).T
    return speeds * computing, speeds * delivering


class Patience(NamedTuple):
    """How long to wait for a task, and how many tasks then complete, in mean service times."""

    patience: float
    """After how many mean service times to start anew.

    Infinite if waiting is best; 0 if the rate is a limit that ever shorter times approach.
    """
    rate: float
    r"""Completed tasks per mean service time, :math:`\mu^*/\mu`, restart costs included."""


def best_patience(law: LawLike, *, restart_cost: float = 0.0) -> Patience:
    r"""After what time a task is best stopped and begun anew, if a fresh start draws a fresh time.

    .. math:: \frac{\mu^*}{\mu} = \sup_a \frac{F(a)}{c + E\min(S, a)}

    ``law`` is that of :math:`S`, of mean 1, and ``restart_cost`` :math:`c`, what every start costs in
    mean service times (links, set-up). If the hazard rate rises (exponential, Erlang, deterministic),
    waiting is best. If it falls from the beginning and starts cost nothing, the supremum is the limit
    :math:`a \to 0`, the density at 0: :math:`2 v/(1 + v)` for hyperexponential times of variance
    :math:`v`. It is infinite for Weibull and gamma times of shape below 1, which raises `InvalidInput`.
    Accurate to about 1e-4; a law of one's own is sampled, which gives about two digits.

    >>> best_patience("exponential"), best_patience("deterministic", restart_cost=1.0)
    (Patience(patience=inf, rate=1.0), Patience(patience=inf, rate=0.5))
    >>> [round(x, 2) for x in best_patience({"name": "lognormal", "sigma": 1.0})]
    [1.05, 1.12]
    >>> best_patience({"name": "hyperexponential", "scv": 4.0})
    Patience(patience=0.0, rate=1.6)
    """
    cost = check_number("restart_cost", restart_cost, least=0.0)
    (one,) = as_laws(law, "law")
    found = _fastest(one, cost)
    if math.isinf(found.rate):
        raise _without_floor(one)
    return found


def _without_floor(law: ServiceLaw) -> InvalidInput:
    return InvalidInput(
        f"tasks of the law {law} complete as fast as one likes if attempts are stopped soon enough and a "
        "fresh start costs nothing: the noise has no floor above 0. Give a restart_cost above 0, or a "
        "fleet with links."
    )


def _fastest(law: ServiceLaw, cost: float) -> Patience:
    """The best patience; its rate is infinite if the density at 0 is and starts cost nothing."""
    waiting = Patience(math.inf, 1.0 / (cost + 1.0))
    hazard = _hazard(law)
    if hazard == "rises":
        return waiting
    if hazard == "falls" and cost == 0.0:
        return Patience(0.0, _density_at_zero(law))
    times, done, held = _attempts(law)
    rates = done / (cost + held)
    least = np.full(times.size, LEAST_GAIN)
    if not isinstance(law, Law | Trace):  # of few samples the luckiest would be the best
        least = SURE / np.sqrt(done * times.size)
    best = int(np.argmax(rates * (1.0 - least)))
    if rates[best] * (1.0 - least[best]) <= waiting.rate:
        return waiting
    return Patience(float(times[best]), float(rates[best]))


def _hazard(law: ServiceLaw) -> str:
    """Whether the hazard rate rises (or is constant), falls from the beginning, or neither is known."""
    if not isinstance(law, Law):
        return "unknown"
    given = dict(law.parameters)
    if law.name in ("exponential", "deterministic", "erlang"):
        return "rises"
    if law.name in ("gamma", "weibull"):
        return "rises" if given["shape"] >= 1.0 else "falls"
    return "falls" if law.name == "hyperexponential" else "unknown"


def _density_at_zero(law: ServiceLaw) -> float:
    """The density at 0 of a law whose hazard rate falls from the beginning."""
    if isinstance(law, Law) and law.name == "hyperexponential":
        scv = dict(law.parameters)["scv"]
        return 2.0 * scv / (1.0 + scv)  # balanced means
    return math.inf


class StoppedTimes(NamedTuple):
    """What stopping makes of a law of mean 1, in mean service times."""

    rate: float
    r"""Completed tasks per mean service time, :math:`F(a)/E\min(S, a)`."""
    last: float
    r"""Mean time of the attempt that completes, :math:`E[S \mid S \le a]`."""


def stopped_times(law: LawLike, patience: float) -> StoppedTimes:
    """How fast tasks complete if every attempt ends after ``patience`` mean service times.

    >>> [round(x, 4) for x in stopped_times("exponential", 0.5)]
    [1.0, 0.2293]
    >>> [round(x, 2) for x in stopped_times("lognormal", 1.05)]
    [1.12, 0.46]
    """
    longest = check_number("patience", patience, above=0.0)
    (one,) = as_laws(law, "law")
    times, done, held = _attempts(one)
    if one == Law("exponential"):
        share = tried = -math.expm1(-longest)
    elif longest >= times[-1]:
        share, tried = 1.0, float(held[-1])
    elif isinstance(one, Law) and one.name != "deterministic":
        share, tried = (float(np.interp(longest, times, x)) for x in (done, held))
    else:
        number = int(np.searchsorted(times, longest, side="right"))
        share = number / times.size
        tried = float(times[:number].sum()) / times.size + (1.0 - share) * longest
    if share == 0.0:
        raise InvalidInput(f"no task of the law {one} completes within a patience of {longest:g}")
    return StoppedTimes(share / tried, (tried - longest * (1.0 - share)) / share)


def _attempts(law: ServiceLaw) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times a at which to stop, :math:`F(a)` and :math:`E min(S, a)`."""
    if law == Law("deterministic"):
        return np.ones(1), np.ones(1), np.ones(1)
    if isinstance(law, Law):
        times = _grid(law)
        done, left = _distribution(law, times)
        held = np.cumsum(0.5 * (left[1:] + left[:-1]) * np.diff(times)) + times[0]
        return times, done, np.concatenate([times[:1], held])
    if isinstance(law, Trace):
        times = np.sort(np.array(law.durations)) / law.mean
    else:
        times = np.sort(law.sample(np.random.default_rng(0), SAMPLES))
    number = np.arange(1, times.size + 1)
    held = (np.cumsum(times) + (times.size - number) * times) / times.size
    return times, number / times.size, held


def _grid(law: Law) -> FloatArray:
    """Times that resolve the distribution function of ``law``; what lies before the first is nothing."""
    given = dict(law.parameters)
    if law.name == "lognormal":
        sigma = given["sigma"]
        return np.exp(sigma * np.linspace(-40.0, 40.0, POINTS) - sigma * sigma / 2.0)
    if law.name == "pareto":
        shape = given["shape"]
        return (shape - 1.0) / shape * (1.0 + np.geomspace(1e-12, 1e12, POINTS))
    return np.geomspace(1e-80, 1e9, POINTS)


def _distribution(law: Law, times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The probabilities that a task takes at most each of ``times``, and longer; both to full precision."""
    from scipy import special  # a server that chooses clients needs none of it

    given = dict(law.parameters)
    if law.name == "lognormal":
        sigma = given["sigma"]
        place = (np.log(times) + sigma * sigma / 2.0) / sigma
        return np.asarray(special.ndtr(place)), np.asarray(special.ndtr(-place))
    if law.name in ("gamma", "erlang"):
        shape = given.get("shape", given.get("stages", 1.0))
        ages = shape * times
        return np.asarray(special.gammainc(shape, ages)), np.asarray(special.gammaincc(shape, ages))
    if law.name == "hyperexponential":
        fast = fast_share(given["scv"])
        shares = np.array([fast, 1.0 - fast])
        ages = np.multiply.outer(times, 2.0 * shares)
        return -np.expm1(-ages) @ shares, np.exp(-ages) @ shares
    if law.name == "pareto":
        shape = given["shape"]
        least = (shape - 1.0) / shape
        age = shape * np.log(np.maximum(times, least) / least)
    elif law.name == "weibull":
        shape = given["shape"]
        age = (times * math.gamma(1.0 + 1.0 / shape)) ** shape
    else:
        age = times  # exponential
    return -np.expm1(-age), np.exp(-age)


def balanced_work(fleet: Fleet, factor: float = 1.0) -> FloatArray:
    r"""Local steps per task by which a client computes about as long as its task travels.

    .. math:: H_i = \max(1, c\, \mu_i (d_i + u_i))

    rounded to whole steps; shape ``(k,)``. ``factor`` is :math:`c`. The floor with :math:`H_i` is
    :math:`\frac{1}{n^2}\sum_i \omega_i^2 (l_i/H_i + 1/\mu_i)/d_i`: one step wastes the wire, many reach
    the floor of a fleet without links and are as stale as one likes; :math:`c = 1` is within a factor of
    two of both.

    >>> balanced_work(Fleet([1.0, 4.0, 50.0], uplink=[0.2, 2.0, 2.0])).tolist()
    [1.0, 8.0, 100.0]
    """
    check_number("factor", factor, least=0.0)
    links = fleet.link_times
    journeys = np.zeros(fleet.classes) if links is None else links
    return np.maximum(1.0, np.round(factor * fleet.service_rates * journeys))


def _work(fleet: Fleet, work: ArrayLike) -> FloatArray:
    """``work`` of every class, shape ``(k,)``."""
    steps = np.asarray(work, dtype=np.float64)
    if steps.shape not in ((), (fleet.classes,)) or not np.all((steps > 0) & np.isfinite(steps)):
        raise InvalidInput(
            f"work must be a positive number, or one for each of the {fleet.classes} classes; its "
            f"shape is {steps.shape}"
        )
    return np.broadcast_to(steps, (fleet.classes,))
