"""Who holds which samples: homogeneous, Dirichlet, a few labels each, or labels by speed."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from sojourn._support.extensions import split_parameter
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray, IntArray

PARTITIONS = ("homogeneous", "dirichlet", "labels", "disjoint", "by-speed")
DIRICHLET_BETA = 0.5
BY_SPEED_SORTING = 1.0
DIRICHLET_DRAWS = 100


@dataclass(frozen=True, eq=False)
class Partition:
    """The indices of the samples that each client holds, and what is worth saying about them.

    ``clients`` has one sorted array per client, none empty and no two overlapping; ``notes`` says
    which samples were left out or moved, in sentences for the user.
    """

    clients: tuple[IntArray, ...]
    notes: tuple[str, ...] = ()


def make_partition(
    text: str,
    labels: ArrayLike,
    clients: int,
    generator: Generator,
    *,
    service_rates: ArrayLike | None = None,
) -> Partition:
    """The partition named by ``text``, such as ``dirichlet``, ``dirichlet(0.1)`` or ``labels(3)``.

    ``labels`` are the labels of the samples, shape (N,), each of 0, ..., K-1 occurring;
    ``service_rates`` those of the clients, which ``by-speed`` needs.

    >>> labels = np.repeat(np.arange(4), 10)
    >>> made = make_partition("labels(2)", labels, 4, np.random.default_rng(1))
    >>> partition_table(made, labels).tolist()
    [[5, 5, 0, 0], [0, 0, 5, 5], [5, 5, 0, 0], [0, 0, 5, 5]]
    """
    y = np.asarray(labels, dtype=np.int64)
    name, parameter = parse_partition(text)
    if clients < 1:
        raise InvalidInput(f"a partition needs at least one client; {clients} were asked for")
    if clients > y.size:
        raise InvalidInput(
            f"{y.size} samples cannot be shared among {clients} clients: someone would have none. "
            "Use a larger data set or fewer clients."
        )
    if name == "homogeneous":
        return homogeneous(y, clients, generator)
    if name == "dirichlet":
        return dirichlet(y, clients, generator, beta=parameter or DIRICHLET_BETA)
    if name == "labels":
        return labels_each(y, clients, generator, labels_per_client=int(parameter or 1))
    if name == "by-speed":
        if service_rates is None or np.shape(service_rates) != (clients,):
            raise InvalidInput(
                f"partition '{text}' needs the service rate of each of the {clients} clients"
            )
        sorting = BY_SPEED_SORTING if parameter is None else parameter
        return by_speed(y, np.asarray(service_rates, dtype=float), generator, sorting=sorting)
    return labels_each(y, clients, generator, labels_per_client=1)


def parse_partition(text: str) -> tuple[str, float | None]:
    """The kind of partition and its parameter, or ``InvalidInput``.

    >>> parse_partition("dirichlet(0.1)"), parse_partition("homogeneous")
    (('dirichlet', 0.1), ('homogeneous', None))
    """
    name, given = split_parameter("partition", text, PARTITIONS)
    if given is None:
        if name == "labels":
            raise InvalidInput("how many labels per client? Write, for three each: labels(3)")
        return name, None
    try:
        parameter = float(given)
    except ValueError:
        raise InvalidInput(f"partition '{text}': '{given}' is not a number") from None
    if name == "dirichlet" and not 0 < parameter < np.inf:
        raise InvalidInput(f"partition '{text}': the concentration must be positive and finite")
    if name == "labels" and not (parameter >= 1 and parameter.is_integer()):
        raise InvalidInput(f"partition '{text}': labels per client must be a whole number >= 1")
    if name == "by-speed" and not 0 <= parameter <= 1:
        raise InvalidInput(f"partition '{text}': the sorting must be between 0 and 1")
    if name in ("homogeneous", "disjoint"):
        raise InvalidInput(f"partition '{text}': {name} takes no parameter")
    return name, parameter


def homogeneous(labels: IntArray, clients: int, generator: Generator) -> Partition:
    """Every client an equal number of samples of each class; the remainders are left out.

    Paper: section 3.3, "Homogeneous".
    """
    shares: list[list[IntArray]] = [[] for _ in range(clients)]
    unused = 0
    for label, members in enumerate(_by_class(labels)):
        each = members.size // clients
        if each == 0:
            raise InvalidInput(
                f"class {label} has {members.size} samples, too few for one to each of {clients} "
                "clients: a homogeneous partition cannot be made. Use fewer clients, or dirichlet."
            )
        unused += members.size - each * clients
        for share, part in zip(
            shares,
            generator.permutation(members)[: each * clients].reshape(clients, each),
            strict=True,
        ):
            share.append(part)
    return _partition(shares, _unused_note(unused, labels.size))


def dirichlet(
    labels: IntArray, clients: int, generator: Generator, *, beta: float = DIRICHLET_BETA
) -> Partition:
    r"""Class by class, shares drawn from a Dirichlet law: clients differ in mixture and volume.

    .. math:: q_k \sim \mathrm{Dir}_n(\beta), \quad k = 1, \ldots, K

    Client :math:`j` receives a fraction :math:`q_{k,j}` of class :math:`k`. A draw that leaves a
    client with nothing is drawn again; if that keeps happening, empty clients get one sample each
    of the client that has the most. Either is said in ``notes``. Paper: section 3.3,
    "Heterogeneous".
    """
    classes = _by_class(labels)
    for draw in range(1, DIRICHLET_DRAWS + 1):
        shares = _dirichlet_shares(classes, clients, generator, beta)
        sizes = np.array([sum(part.size for part in share) for share in shares])
        if sizes.all():
            note = f"the Dirichlet partition left a client empty {draw - 1} times; drawn again"
            return _partition(shares, (note,) if draw > 1 else ())
    held = [np.concatenate(share) for share in shares]
    empty = [i for i, indices in enumerate(held) if not indices.size]
    for i in empty:
        richest = max(range(clients), key=lambda j: held[j].size)
        held[i], held[richest] = held[richest][:1], held[richest][1:]
    note = (
        f"each of {DIRICHLET_DRAWS} Dirichlet draws left a client empty; in the last, {len(empty)} "
        "empty clients were given one sample each of the client that had the most"
    )
    return _partition([[indices] for indices in held], (note,))


def labels_each(
    labels: IntArray, clients: int, generator: Generator, *, labels_per_client: int
) -> Partition:
    """``labels_per_client`` labels for every client, sequentially and cyclically, equal volumes.

    Client i holds labels k i, k i + 1, ..., k i + k - 1 modulo K, the same number of samples of
    each. Paper: appendix, "Highly heterogeneous data distribution". One label each makes it
    ``disjoint``.
    """
    classes = _by_class(labels)
    k, kinds = labels_per_client, len(classes)
    if not 1 <= k <= kinds:
        raise InvalidInput(
            f"{k} labels per client cannot be: the data set has {kinds}. Give a number from 1 to "
            f"{kinds}."
        )
    if clients * k < kinds:
        raise InvalidInput(
            f"{clients} clients with {k} labels each hold only {clients * k} of {kinds} labels. "
            f"Give at least {-(-kinds // clients)} labels per client."
        )
    held = np.arange(clients * k).reshape(clients, k) % kinds
    holders = np.bincount(held.ravel(), minlength=kinds)
    quota = min(members.size // count for members, count in zip(classes, holders, strict=True))
    if quota == 0:
        raise InvalidInput(
            f"some label has fewer samples than the {holders.max()} clients that should hold it. "
            "Use fewer clients, or fewer labels per client."
        )
    piles = [
        iter(generator.permutation(members)[: quota * count].reshape(count, quota))
        for members, count in zip(classes, holders, strict=True)
    ]
    shares = [[next(piles[label]) for label in row] for row in held]
    return _partition(shares, _unused_note(labels.size - clients * k * quota, labels.size))


def by_speed(
    labels: IntArray,
    service_rates: FloatArray,
    generator: Generator,
    *,
    sorting: float = BY_SPEED_SORTING,
) -> Partition:
    r"""Labels that go with speed: slow clients hold the first, fast clients the last; equal volumes.

    Clients stand in a row by speed, those equally fast as one group, and labels are laid out beside
    them: label k of K begins at the fraction k/K of the row. A group holds the labels that begin
    beside it or, if none does, the one that reaches into it, which the group where it begins then
    holds only if it has no other; within a group all hold the same.
    ``sorting`` is the fraction :math:`q` of what a client holds that is dealt so, the rest is as in
    ``homogeneous``: client i holds

    .. math:: (1-q)\, N_k/n + q\, S_{ik}

    samples of label k, :math:`N_k` being their number and :math:`S` what is held at q = 1. So q = 0
    is homogeneous, and with q = 1 a rule that hears the fast clients more often learns the last
    labels first.

    >>> labels = np.repeat(np.arange(4), 6)
    >>> made = by_speed(labels, np.array([9.0, 0.1, 0.1]), np.random.default_rng(1))
    >>> partition_table(made, labels).tolist()
    [[0, 0, 0, 6], [2, 2, 2, 0], [2, 2, 2, 0]]
    """
    clients = service_rates.size
    held = _held_by_speed(service_rates, int(labels.max()) + 1)
    classes = _by_class(labels)
    available = np.array([members.size for members in classes])
    sorted_share = held * (available / held.sum(axis=0))
    volume = sorted_share.sum(axis=1)
    sorted_share *= (volume.min() / volume)[:, np.newaxis]
    wanted = (1 - sorting) * (available // clients) + sorting * sorted_share
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    each = int(counts.sum(axis=1).min())
    if each == 0:
        raise InvalidInput(
            f"{labels.size} samples are too few to be dealt by speed to {clients} clients: someone "
            "would have none. Use a larger data set, fewer clients, or dirichlet."
        )
    for row in counts:
        while row.sum() > each:
            row[row.argmax()] -= 1
    shares: list[list[IntArray]] = [[] for _ in range(clients)]
    for members, column in zip(classes, counts.T, strict=True):
        parts = np.split(generator.permutation(members), np.cumsum(column))
        for share, part in zip(shares, parts, strict=False):
            share.append(part)
    return _partition(shares, _unused_note(labels.size - each * clients, labels.size))


def partition_table(partition: Partition, labels: ArrayLike) -> IntArray:
    """How many samples of each label every client holds, shape (clients, classes).

    >>> made = Partition((np.array([0, 1]), np.array([2])))
    >>> partition_table(made, [0, 1, 1]).tolist()
    [[1, 1], [0, 1]]
    """
    y = np.asarray(labels, dtype=np.int64)
    kinds = int(y.max()) + 1
    return np.stack([np.bincount(y[held], minlength=kinds) for held in partition.clients])


def _by_class(labels: IntArray) -> list[IntArray]:
    return [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]


def _held_by_speed(service_rates: FloatArray, kinds: int) -> NDArray[np.bool_]:
    """Which labels every client holds where labels go with speed entirely: (clients, kinds)."""
    clients = service_rates.size
    _, group, sizes = np.unique(service_rates, return_inverse=True, return_counts=True)
    first = np.cumsum(sizes) - sizes
    begins_in = np.searchsorted(first * kinds, np.arange(kinds) * clients, side="right") - 1
    held = begins_in == np.arange(sizes.size)[:, np.newaxis]
    without = np.flatnonzero(~held.any(axis=1))
    reaching = first[without] * kinds // clients
    for label in np.unique(reaching):
        if held[begins_in[label]].sum() > 1:
            held[begins_in[label], label] = False
    held[without, reaching] = True
    members: NDArray[np.bool_] = held[group]
    return members


def _dirichlet_shares(
    classes: list[IntArray], clients: int, generator: Generator, beta: float
) -> list[list[IntArray]]:
    shares: list[list[IntArray]] = [[] for _ in range(clients)]
    for members in classes:
        fractions = generator.dirichlet(np.full(clients, beta))
        cuts = np.round(np.cumsum(fractions)[:-1] * members.size).astype(np.int64)
        parts = np.split(generator.permutation(members), np.minimum(cuts, members.size))
        for share, part in zip(shares, parts, strict=True):
            share.append(part)
    return shares


def _partition(shares: list[list[IntArray]], notes: tuple[str, ...]) -> Partition:
    return Partition(tuple(np.sort(np.concatenate(share)) for share in shares), notes)


def _unused_note(unused: int, total: int) -> tuple[str, ...]:
    if not unused:
        return ()
    return (f"{unused} of {total} samples are left out, so that all clients hold equally many",)
