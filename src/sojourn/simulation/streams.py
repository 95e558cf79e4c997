"""Random numbers for the kernels, drawn by NumPy in blocks: clients to send to and service times.

The kernels are deterministic functions of these numbers, so a slow twin that is fed the same
numbers must give the same schedule. Blocks have one size, so a schedule does not depend on how
many rounds are asked for at a time.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import check_seed
from sojourn._support.compiling import njit
from sojourn.fleet import Network
from sojourn.simulation.events import Times
from sojourn.types import FloatArray, IntArray

if TYPE_CHECKING:
    from sojourn.simulation.scenario import Scenario

BLOCK = 8192
CLIENT_BLOCK = 32
"""Numbers drawn at a time for a stream of a single client."""
SERVICE_AT, DOWNLINK_AT, UPLINK_AT, SERVER_AT = 1, 4, 5, 6
"""Which of the generators of a run draw times; 0 draws the start, 2 routed clients, 3 choices, 7 absences."""

Seed = int | np.random.SeedSequence

Number = TypeVar("Number", bound=np.generic)


class Stream(Generic[Number]):
    """An endless sequence of numbers: ``values[used:]`` are the next ones."""

    def __init__(self, draw: Callable[[int], NDArray[Number]], *, block: int = BLOCK) -> None:
        self._draw = draw
        self._block = block
        self.values = draw(block)
        self.used = 0

    def ensure(self, needed: int) -> None:
        """Have at least ``needed`` numbers ready."""
        while self.values.size - self.used < needed:
            rest = self.values[self.used :]
            fresh = self._draw(self._block)
            self.values = np.concatenate((rest, fresh)) if rest.size else fresh
            self.used = 0

    def take(self, number: int) -> NDArray[Number]:
        """The next ``number`` numbers."""
        self.ensure(number)
        self.used += number
        return self.values[self.used - number : self.used]


def generators(seed: Seed, number: int) -> list[np.random.Generator]:
    """Independent generators that depend on ``seed`` only, however often this is called.

    >>> a, b = (generators(7, 2)[1].random() for _ in range(2))
    >>> a == b
    True
    """
    return [np.random.Generator(np.random.SFC64(child)) for child in spawned(seed, number)]


def substreams(seed: Seed, place: int, number: int) -> list[np.random.Generator]:
    """``number`` independent generators below the one at ``place`` of `generators`."""
    return generators(_below(seed_sequence(seed), place), number)


def spawned(seed: Seed, number: int) -> list[np.random.SeedSequence]:
    """Independent seeds that depend on ``seed`` only, however often this is called."""
    sequence = seed_sequence(seed)
    return [_below(sequence, place) for place in range(number)]


def _below(sequence: np.random.SeedSequence, place: int) -> np.random.SeedSequence:
    """What a fresh ``sequence`` spawns at ``place``."""
    return np.random.SeedSequence(
        entropy=sequence.entropy,
        spawn_key=(*sequence.spawn_key, place),
        pool_size=sequence.pool_size,
    )


def seed_sequence(seed: Seed) -> np.random.SeedSequence:
    """``seed`` as a NumPy ``SeedSequence``."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    return np.random.SeedSequence(check_seed(seed))


def seed_record(seed: Seed) -> int | dict[str, object]:
    """The seed as it is written to a file: a number, or entropy and spawn key."""
    if isinstance(seed, np.random.SeedSequence):
        return {"entropy": seed.entropy, "spawn-key": list(seed.spawn_key)}
    return int(seed)


def seed_from_record(record: object) -> Seed:
    """The inverse of ``seed_record``."""
    if isinstance(record, Mapping):
        return np.random.SeedSequence(
            entropy=record["entropy"], spawn_key=tuple(record["spawn-key"])
        )
    return int(record)  # type: ignore[call-overload,no-any-return]


class AliasTable(NamedTuple):
    """Walker's alias table over classes, and where the clients of each class lie.

    A uniform number picks a cell, then one of the cell's two classes; what is left of the number
    picks a member of that class, so one number is enough. The probability of every client is
    right to a few units of 1e-16.
    """

    keep: NDArray[np.float64]
    other: NDArray[np.int64]
    first: NDArray[np.int64]
    members: NDArray[np.int64]


def alias_table(network: Network) -> AliasTable:
    """The table that draws client i with probability ``network.client_routing[i]``.

    Cost: O(k) for k classes, once.
    """
    counts = network.fleet.counts
    weights = counts * network.routing
    mass = (weights / weights.sum() * counts.size).tolist()
    keep = np.ones(counts.size)
    other = np.arange(counts.size)
    poor = [k for k, value in enumerate(mass) if value < 1.0]
    rich = [k for k, value in enumerate(mass) if value >= 1.0]
    while poor and rich:
        giver, taker = rich[-1], poor.pop()
        keep[taker], other[taker] = mass[taker], giver
        mass[giver] -= 1.0 - mass[taker]
        if mass[giver] < 1.0:
            poor.append(rich.pop())
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return AliasTable(keep, other, first, np.array(counts))


@njit(cache=True, nogil=True, error_model="numpy")
def routed_clients(table: AliasTable, uniforms: NDArray[np.float64]) -> NDArray[np.uint32]:
    """The clients that uniform numbers in [0, 1) pick."""
    keep, other, first, members = table
    clients = np.empty(uniforms.size, dtype=np.uint32)
    for i in range(uniforms.size):
        scaled = uniforms[i] * keep.size
        cell = np.int64(scaled)
        rest = scaled - cell
        edge = keep[cell]
        low = rest < edge
        chosen = cell if low else other[cell]
        part = rest / edge if low else (rest - edge) / (1.0 - edge)
        member = min(np.int64(part * members[chosen]), members[chosen] - 1)
        clients[i] = first[chosen] + member
    return clients


def routed_stream(network: Network, random: np.random.Generator) -> Stream[np.uint32]:
    """Clients drawn from the routing."""
    table = alias_table(network)
    return Stream(lambda size: routed_clients(table, random.random(size)))


def shuffled_stream(network: Network, random: np.random.Generator) -> Stream[np.uint32]:
    """Clients in a fresh random order every n dispatches."""
    order = np.arange(network.size, dtype=np.uint32)
    position = np.zeros(1, dtype=np.int64)
    return Stream(lambda size: _shuffle(order, position, random.random(size)))


@njit(cache=True, nogil=True)
def _shuffle(
    order: NDArray[np.uint32], position: IntArray, uniforms: FloatArray
) -> NDArray[np.uint32]:
    """Clients in a fresh random order every n dispatches, one uniform number each."""
    clients = np.empty(uniforms.size, dtype=np.uint32)
    here = position[0]
    for i in range(uniforms.size):
        chosen = here + np.int64(uniforms[i] * (order.size - here))
        clients[i] = order[chosen]
        order[chosen] = order[here]
        order[here] = clients[i]
        here = (here + 1) % order.size
    position[0] = here
    return clients


class ServiceTimes:
    """Times waiting to be used: for every stream a row of numbers of mean 1.

    All clients share one stream, or those of one law do, or every client has its own (``paired``), so
    that its j-th task takes the same time under every policy and concurrency (common random numbers).
    ``row[i]`` is the stream of client i and ``scale[i]`` its mean service time; ``values[r, used[r]]``
    is the next number of stream r. Rows are refilled in blocks of one size, so that the numbers do not
    depend on when; ``least`` are ready in every row. With ``delays``, those of links and of the
    server, entries n to 3 n are the downlinks and uplinks of the clients, and the last is the server.
    """

    def __init__(
        self,
        network: Network,
        scenario: "Scenario",
        seed: Seed,
        *,
        block: int,
        least: int,
        delays: bool = False,
    ) -> None:
        laws, paired, work = scenario.law, scenario.paired, scenario.client_work(network)
        n, fleet = network.size, network.fleet
        law_of = np.repeat(network.parents if len(laws) > 1 else 0 * network.parents, fleet.counts)
        self.least = least
        self._block = CLIENT_BLOCK if paired else block
        if paired:
            self._laws = [laws[k] for k in law_of.tolist()]
            self._random = substreams(seed, SERVICE_AT, n)
        else:
            shared = len(laws) == 1
            self._laws = list(laws)
            self._random = (
                [generators(seed, SERVICE_AT + 1)[SERVICE_AT]]
                if shared
                else substreams(seed, SERVICE_AT, len(laws))
            )
        rows: list[IntArray] = [np.arange(n) if paired else law_of.astype(np.int64)]
        scales: list[FloatArray] = [work / fleet.expand(fleet.service_rates)]
        if delays:
            for place, means in ((DOWNLINK_AT, "downlink"), (UPLINK_AT, "uplink")):
                scales.append(fleet.expand(fleet.column(means)))
                rows.append(len(self._random) + (np.arange(n) if paired else np.zeros(n, np.int64)))
                random = substreams(seed, place, n) if paired else [generators(seed, place + 1)[-1]]
                self._random += random
                self._laws += [scenario.link_law] * len(random)
            scales.append(np.array([1.0 / (network.server_rate or np.inf)]))
            rows.append(np.array([len(self._random)]))
            self._random.append(generators(seed, SERVER_AT + 1)[SERVER_AT])
            self._laws.append(scenario.server_law)
        self.row: IntArray = np.concatenate(rows)
        self.scale: FloatArray = np.concatenate(scales)
        number = len(self._random)
        self.values: FloatArray = np.empty((number, self._block + least))
        self.used: IntArray = np.zeros(number, dtype=np.int64)
        self.filled: IntArray = np.zeros(number, dtype=np.int64)
        self.refill()

    @property
    def times(self) -> Times:
        """The numbers as the kernels take them."""
        return Times(self.scale, self.row, self.values, self.used, self.filled, self.least)

    def refill(self) -> None:
        """Have at least ``least`` numbers ready in every row."""
        for r in np.flatnonzero(self.filled - self.used < self.least).tolist():
            rest = self.values[r, self.used[r] : self.filled[r]].copy()
            self.values[r, : rest.size] = rest
            fresh = self._laws[r].sample(self._random[r], self._block)
            self.values[r, rest.size : rest.size + self._block] = fresh
            self.used[r], self.filled[r] = 0, rest.size + self._block

    def take(self, client: int) -> float:
        """How long the next task of ``client`` takes."""
        r = int(self.row[client])
        if self.used[r] == self.filled[r]:
            self.refill()
        self.used[r] += 1
        return float(self.values[r, self.used[r] - 1] * self.scale[client])
