r"""What a server rule is: a frozen value that takes one state and one arrival to the next state.

Whatever a rule remembers (buffers, tables, momenta, counters) stands in its `ServerState` as named
arrays and numbers, so that a checkpoint writes any rule's state without knowing the rule, and the
same rule serves the replay in virtual time and a deployment.

``staleness`` (:math:`\tau`) counts *model versions* between the dispatch of a task and its use; a
rule that buffers makes a new version only when it empties its buffer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import check_per_client, check_positive
from sojourn._support.memory import physical_bytes
from sojourn.errors import InvalidInput
from sojourn.rules.arrays import copied
from sojourn.types import IntArray, Vector

AVERAGE = "averaged_weights"
"""The array of a state that holds an average of versions, where the rule keeps one."""
MODEL = "model"
"""The array of a state that holds the model, where tasks are sent other weights than it."""
NEVER_QUEUE = "never-queue"
"""The policy of rules that keep every client busy with one task."""

Sends = Literal["gradient", "difference"]
LocalSteps = int | tuple[int, ...]
"""Local steps of a task: one number for all clients, or one for each."""
Number = int | float
Layout = Sequence[tuple[str, tuple[int, ...]]]
"""Names and shapes of the tensors that the flat vector of weights is made of, in their order."""
Moved = TypeVar("Moved")


class Work(Protocol):
    """What of a rule a client has to know to say what it sends."""

    @property
    def sends(self) -> str: ...
    @property
    def local_steps(self) -> LocalSteps: ...


def steps_of(work: Work, client: int) -> int:
    """The local steps of a task of ``client``.

    >>> from sojourn.rules import FedBuff
    >>> [steps_of(FedBuff(local_steps=(2, 5)), client) for client in (0, 1)]
    [2, 5]
    """
    steps = work.local_steps
    return steps[client] if isinstance(steps, tuple) else steps


def client_steps(work: Work, clients: int) -> IntArray:
    """The local steps of a task of every client, shape ``(clients,)``."""
    return np.broadcast_to(np.asarray(work.local_steps, dtype=np.int64), (clients,))


def with_local_steps(rule: "Rule", steps: LocalSteps) -> "Rule":
    """``rule`` with other local steps; equal ones become one number."""
    if isinstance(steps, tuple) and len(set(steps)) == 1:
        steps = steps[0]
    if steps == rule.local_steps:
        return rule
    value: object = rule
    if not is_dataclass(value):
        raise InvalidInput(
            f"the rule '{rule.name}' has its own local_steps: only those of a dataclass can be replaced"
        )
    changed: Rule = replace(cast("Any", value), local_steps=steps)
    return changed


def check_local_steps(work: Work, clients: int) -> None:
    """Raise unless there is one number of steps, or one for each of ``clients``."""
    check_per_client("local_steps", work.local_steps, clients)


def one_gradient(work: Work) -> bool:
    """Whether a task is one gradient at the weights sent, and no step is made at the client."""
    return work.sends == "gradient" and work.local_steps == 1


def sent_back(work: Work, difference: Moved, rate: Any) -> Moved:
    r"""What a client sends of the ``difference`` that its local steps at ``rate`` have made.

    .. math:: \Delta = x_k - w \quad\text{or, as a gradient,}\quad
       -\Delta/\eta_{\text{local}} = \sum_{j<k} \bigl(g(x_j) + \rho (x_j - w)\bigr)

    A rule of gradients that steps at the local rate thus moves as far as the client did.
    """
    scaled: Any = difference
    return scaled / -rate if work.sends == "gradient" else difference


class Arrival(NamedTuple):
    """The result of one task, as the server receives it.

    ``update`` is a stochastic gradient if the rule's ``sends`` is ``"gradient"`` (of several local
    steps: that of `sent_back`), or the locally trained weights minus those sent if it is
    ``"difference"``; ``sent`` is what the task was sent with; ``staleness`` counts the model
    versions made since. ``share`` is the client's share of all tasks as known when this one was
    sent, and ``divisor`` what the weight of the update is divided by, fixed then (see `Weighting`).
    ``round`` counts the completions before this one, ``progress`` is the fraction of the run that
    is over (0 where its end is not known). Of a task that was ``cut`` short there is no update (it
    is zero); only rules that say so hear of it. ``loss`` is the mean loss that the client saw over
    its ``steps`` local steps, not a number where nobody says.
    """

    update: Vector
    sent: Vector
    client: int
    staleness: int
    share: float
    divisor: float = 1.0
    round: int = 0
    progress: float = 0.0
    cut: bool = False
    loss: float = math.nan
    steps: int = 1


class ServerState(NamedTuple):
    """The weights, how many versions were made so far, and whatever else the rule remembers.

    ``weights`` is never changed in place: every version is a vector of its own. ``arrays``, of any
    shape, belong to the rule, which may change them in place; ``numbers`` can be written as JSON.
    """

    weights: Vector
    version: int = 0
    arrays: Mapping[str, NDArray[Any]] = {}
    numbers: Mapping[str, Number] = {}

    @property
    def model(self) -> Vector:
        """What is evaluated and delivered: an average of versions, the rule's model or the weights.

        Tasks are sent with ``weights`` all the same.
        """
        if self.version and AVERAGE in self.arrays:
            return copied(self.arrays[AVERAGE])
        return copied(self.arrays[MODEL]) if MODEL in self.arrays else self.weights

    def updated(self, weights: Vector, **numbers: Number) -> "ServerState":
        """The next version, with ``numbers`` changed."""
        changed = {**self.numbers, **numbers} if numbers else self.numbers
        return ServerState(weights, self.version + 1, self.arrays, changed)

    def remembering(self, **numbers: Number) -> "ServerState":
        """The same version, with ``numbers`` changed."""
        return self._replace(numbers={**self.numbers, **numbers})


class Rule(Protocol):
    """What the replay and the deployment need of a rule.

    ``name`` is what configuration calls it, ``sends`` what a client returns, ``policy`` the
    dispatch policy it is meant for. A client takes ``local_steps`` steps at
    ``local_learning_rate`` (``None``: the learning rate of the run), each pulled towards the
    weights sent by ``proximal`` times the distance, and returns what `sent_back` makes of them;
    where it sends a gradient and takes one step, that gradient. ``local_steps`` is one number, or a
    tuple with one for each client; it is also how many service times a task takes.

    A rule may also have

    - ``weighting`` (`Weighting`), from which the divisors of arrivals are made;
    - ``memory(clients, dimension)``: how many numbers it stores beyond the weights;
    - ``learning_rate_scale(stable_step)``: the learning rate around which to search
      (`learning_rate_scale`);
    - ``uses_layout``, true if ``begin`` takes a third argument, the `Layout` of the weights;
    - ``hears_of_cuts``, true if `apply` is to be called for tasks that were cut short;
    - ``sent(state)``, what a task is sent with: the weights that it starts from, and behind them whatever
      else the client is to know. It changes only with the version. By default ``state.weights``;
    - a part that clients carry out, with a state that stays with them: `ClientPart`.

    A state with an array ``averaged_weights`` or ``model`` has that as the model that is evaluated
    and delivered (`ServerState.model`), while tasks are sent with its ``weights``.
    """

    @property
    def name(self) -> str: ...
    @property
    def sends(self) -> Sends: ...
    @property
    def policy(self) -> str: ...
    @property
    def local_steps(self) -> LocalSteps: ...
    @property
    def local_learning_rate(self) -> float | None: ...
    @property
    def proximal(self) -> float: ...

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival; its arrays are its own."""
        ...

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> tuple[ServerState, bool]:
        """The state after ``arrival``, and whether it was used (``False``: dropped).

        ``clients`` is n and ``concurrency`` m. ``state`` is not used again.
        """
        ...


class ClientPart(Protocol):
    """The part of a rule that its clients carry out, where it has one: both methods, or neither.

    ``sent`` is what the task was sent with. ``own`` are the arrays that stayed with the client
    after its task before; they are empty at first. Nothing may be changed in place.
    """

    def client_shift(self, sent: Vector, own: Mapping[str, Vector]) -> Vector:
        """What is added to every gradient of the task."""
        ...

    def client_state(
        self,
        sent: Vector,
        own: Mapping[str, Vector],
        difference: Vector,
        steps: int,
        rate: float,
    ) -> Mapping[str, Vector]:
        """What stays with the client, after ``steps`` steps at ``rate`` that moved it by ``difference``."""
        ...


def client_part(rule: Rule) -> ClientPart | None:
    """The part of ``rule`` that clients carry out, if it has one."""
    return cast("ClientPart", rule) if hasattr(rule, "client_shift") else None


def sent_with(rule: Rule, state: ServerState) -> Vector:
    """What a task is sent with: the weights, unless the rule says otherwise."""
    own: Callable[[ServerState], Vector] | None = getattr(rule, "sent", None)
    return state.weights if own is None else own(state)


def begin_state(rule: Rule, weights: Vector, clients: int, layout: Layout = ()) -> ServerState:
    """The state before the first arrival; rules that ask for the ``layout`` of the weights get it."""
    if getattr(rule, "uses_layout", False):
        return rule.begin(weights, clients, layout)  # type: ignore[call-arg]
    return rule.begin(weights, clients)


def learning_rate_scale(rule: Rule, stable_step: float) -> float:
    """The learning rate of ``rule`` around which to search for the best one.

    ``stable_step`` is the largest learning rate at which plain delayed gradient steps are stable for
    the curvature of the problem (`sojourn.theory.stability.largest_stable_step` over the curvature).
    A rule that scales its steps otherwise has a method ``learning_rate_scale(stable_step)``. For others
    it is ``stable_step``, of gradients summed over several local steps divided by their number (the
    largest, where clients differ).

    >>> from sojourn.rules import Adam, AsyncSGD, Momentum
    >>> rules = AsyncSGD(), AsyncSGD(local_steps=4), AsyncSGD(server=Momentum(beta=0.9))
    >>> [round(learning_rate_scale(rule, 2.0), 6) for rule in rules]
    [2.0, 0.5, 0.2]
    >>> learning_rate_scale(AsyncSGD(server=Adam()), 2.0)
    0.005
    """
    own = getattr(rule, "learning_rate_scale", None)
    if own is not None:
        return check_positive(f"learning_rate_scale of the rule '{rule.name}'", own(stable_step))
    return stable_step / most_steps(rule) if rule.sends == "gradient" else stable_step


def most_steps(work: Work) -> int:
    """The largest number of local steps that a client takes."""
    steps = work.local_steps
    return max(steps) if isinstance(steps, tuple) else steps


def local_learning_rate(rule: Rule, learning_rate: float) -> float:
    """The rate of a client's own steps: the rule's, or else the run's."""
    own = rule.local_learning_rate
    return float(learning_rate if own is None else own)


def check_memory(rule: Rule, clients: int, weights: Vector) -> None:
    """Raise if the rule's ``memory``, of numbers like the weights', exceeds this machine's.

    Rules that do not say what they keep are taken to keep little.
    """
    count = getattr(rule, "memory", lambda clients, dimension: 0)(clients, weights.size)
    needed, present = count * weights.itemsize, physical_bytes()
    if needed > present:
        raise InvalidInput(
            f"the rule '{rule.name}' keeps {count:,} numbers beyond the weights, for {clients:,} "
            f"clients and {weights.size:,} weights: {needed / 1e9:,.1f} GB, where this machine has "
            f"{present / 1e9:,.1f} GB. Take a rule that keeps no table, such as 'async-sgd' with "
            "momentum at the server."
        )


def keeps_table(rule: Rule, clients: int) -> bool:
    """Whether the rule keeps at least a vector as long as the weights for every client.

    >>> from sojourn.rules.tables import ACE
    >>> from sojourn.rules.gradients import AsyncSGD
    >>> keeps_table(ACE(), clients=30), keeps_table(AsyncSGD(), clients=30)
    (True, False)
    """
    memory = getattr(rule, "memory", lambda clients, dimension: 0)
    per_weight = memory(clients, 2) - memory(clients, 1)
    return bool(per_weight >= clients)
