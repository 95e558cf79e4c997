r"""What a server rule is: a frozen value that takes one state and one arrival to the next state.

Whatever a rule remembers (buffers, tables, momenta, counters) stands in its `ServerState` as named
arrays and numbers, so that a checkpoint writes any rule's state without knowing the rule, and the
same rule serves the replay in virtual time and a deployment.

``staleness`` (:math:`\tau`) counts *model versions* between the dispatch of a task and its use; a
rule that buffers makes a new version only when it empties its buffer.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from sojourn.types import Vector

AVERAGE = "averaged_weights"
"""The array of a state that holds an average of versions, where the rule keeps one."""
NEVER_QUEUE = "never-queue"
"""The policy of rules that keep every client busy with one task."""

Sends = Literal["gradient", "difference"]
Number = int | float
Moved = TypeVar("Moved")


class Work(Protocol):
    """What of a rule a client has to know to say what it sends."""

    @property
    def sends(self) -> str: ...
    @property
    def local_steps(self) -> int: ...


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
    ``"difference"``; ``sent`` is what the task was sent with; ``staleness`` counts the model versions made since. ``share`` is the client's share of all
    tasks as known when this one was sent, and ``divisor`` what the weight of the update is divided
    by, fixed then (see `Weighting`). ``round`` counts the completions before this one, ``progress``
    is the fraction of the run that is over (0 where its end is not known). Of a task that was
    ``cut`` short there is no update (it is zero); only rules that say so hear of it.
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
        """What is evaluated and delivered: the average of versions where one is kept, or the weights.

        Tasks are sent with ``weights`` all the same.
        """
        average = self.arrays.get(AVERAGE)
        return self.weights if average is None or not self.version else average.copy()

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
    where it sends a gradient and takes one step, that gradient. ``local_steps`` is also how many
    service times a task takes.

    A rule may also have a ``weighting`` (`Weighting`), from which the divisors of arrivals are
    made; a state with an array ``averaged_weights``, which is then the model that is evaluated and
    delivered (`ServerState.model`); ``memory(clients, dimension)``, the numbers it keeps beyond the weights, and
    ``hears_of_cuts``: true if `apply` is to be called for tasks that were cut short.
    """

    @property
    def name(self) -> str: ...
    @property
    def sends(self) -> Sends: ...
    @property
    def policy(self) -> str: ...
    @property
    def local_steps(self) -> int: ...
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


def local_learning_rate(rule: Rule, learning_rate: float) -> float:
    """The rate of a client's own steps: the rule's, or else the run's."""
    own = rule.local_learning_rate
    return float(learning_rate if own is None else own)
