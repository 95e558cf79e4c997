"""Who holds which samples: homogeneous, Dirichlet, a few labels each, or one label each."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.train.naming import split_parameter
from sojourn.types import IntArray

PARTITIONS = ("homogeneous", "dirichlet", "labels", "disjoint")
DIRICHLET_BETA = 0.5
DIRICHLET_DRAWS = 100


@dataclass(frozen=True, eq=False)
class Partition:
    """The indices of the samples that each client holds, and what is worth saying about them.

    ``clients`` has one sorted array per client, none empty and no two overlapping; ``notes`` says
    which samples were left out or moved, in sentences for the user.
    """

    clients: tuple[IntArray, ...]
    notes: tuple[str, ...] = ()


def make_partition(text: str, labels: ArrayLike, clients: int, generator: Generator) -> Partition:
    """The partition named by ``text``, such as ``dirichlet``, ``dirichlet(0.1)`` or ``labels(3)``.

    ``labels`` are the labels of the samples, shape (N,), each of 0, ..., K-1 occurring.

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
    if name in ("homogeneous", "disjoint"):
        raise InvalidInput(f"partition '{text}': {name} takes no parameter")
    return name, parameter


def homogeneous(labels: IntArray, clients: int, generator: Generator) -> Partition:
    """Every client an equal number of samples of each class; the remainders are left out.

    Paper: section 4.1, "Homogeneous".
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
    of the client that has the most. Either is said in ``notes``. Paper: section 4.1,
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
