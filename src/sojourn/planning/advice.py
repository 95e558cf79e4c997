"""What queueing costs a plan, and where it is far from what trains."""

from sojourn._support.numbers import number
from sojourn.fleet import Network, square_root_routing
from sojourn.planning.plan import Plan
from sojourn.theory.stability import largest_stable_step

NOISY = 3.0
"""Times the noise of square-root routing with as many tasks as clients, from which a plan is noisy."""
TIMID = 30.0
"""Times below the largest stable learning rate, beyond which a plan learns needlessly slowly."""


def warnings(plan: Plan) -> list[str]:
    r"""What to know before a plan is trusted; empty if nothing is unusual.

    Few tasks in flight: its noise rate against never queueing and square-root routing with m = n. A
    small learning rate: :math:`\eta L` against `sojourn.theory.stability.largest_stable_step` for
    the plan's tasks and weights.
    """
    return [text for text in (_few_tasks(plan), _small_rate(plan)) if text is not None]


def _few_tasks(plan: Plan) -> str | None:
    fleet, m = plan.fleet, plan.concurrency
    noise, never = plan.predict().noise_rate, plan.never_queue(fleet.size)
    if m >= fleet.size or never is None:
        return None
    p, rate = square_root_routing(fleet), plan.network.server_rate
    routed = plan.predict(Network(fleet, p, fleet.size, server_rate=rate)).noise_rate
    if noise < NOISY * routed:
        return None
    bounded = plan.objective.constants is not None
    why = ": the bound overrates what staleness costs" if bounded else ""
    tasks = "1 task in flight brings" if m == 1 else f"{m} tasks in flight bring"
    return (
        f"{tasks} {fleet.size:,} clients {number(noise / routed)} times the noise of "
        f"square-root routing with {fleet.size:,}, and {number(noise / never.noise_rate)} times that of never queueing"
        f"{why}. Measure more tasks before you train with so few."
    )


def _small_rate(plan: Plan) -> str | None:
    constants, eta = plan.objective.constants, plan.learning_rate
    if constants is None or eta is None:
        return None
    prediction = plan.predict()
    square = prediction.noise_rate * prediction.throughput
    stable = largest_stable_step(plan.concurrency, max(1.0, square)) / constants.smoothness
    if eta * TIMID > stable:
        return None
    return (
        f"The learning rate {eta:.3g} is {stable / eta:.0f} times below the {stable:.2g} at which "
        f"steps of curvature L = {constants.smoothness:g} become unstable at m = {plan.concurrency}: "
        "try larger ones."
    )


def queueing_cost(plan: Plan) -> tuple[float, float] | None:
    """How many times the noise and the staleness in time of never queueing a plan has, if known."""
    ours, never = plan.predict(), plan.never_queue()
    if never is None:
        return None
    return ours.noise_rate / never.noise_rate, ours.staleness_time / never.staleness_time
