r"""How far each client's updates agree with the others'.

A vector :math:`g` is remembered as a sketch of ``WIDTH`` numbers, :math:`s_b = \sum_{j \equiv b}
\epsilon_j g_j` with random signs :math:`\epsilon`, which keeps inner products on average, with an
error of :math:`\sqrt{2/\text{WIDTH}}` of the norms at most (Charikar, Chen and Farach-Colton 2002).
Of every client the exponential mean :math:`m_i` of its normalised sketches is kept. The coordinate-wise
median :math:`c` of these over the clients is short where clients disagree, as their gradients do near
an optimum, and of norm 1 where they are of one mind. A client's agreement is the mean of its cosines
with :math:`c` since the run began, weighted by how much they told,

.. math:: A_i = \sum_t |c_t|^2 \cos(m_{i,t}, c_t) \Big/ \sum_t |c_t|^2,

and the denominator is the *evidence* for it, in updates at a time when all were of one mind. Each
:math:`c_t` is the median as it was about the model that the update was computed with, not as it is
when the update comes: who is slow is compared with what others sent about the same model. The sums
do not depend on how large a client's updates are, so that none can buy itself out by a large one.

The median of coordinates alone can be moved by clients that send alike: where honest updates are noisy in all of
many directions, a fifth that is of one mind moves every coordinate by a third of its spread, which in sum is more than
the mean that is looked for. Together they are the largest principal direction of the :math:`m_i`, though. So once for
every client's update, on average, if that direction holds clearly more than the second one, and no more than it once
the three in ten that are furthest along it are left out, then these are left out of :math:`c` (DnC, Shejwalkar and
Houmansadr 2021). They are judged by it like all others.

Where gradients are noisy :math:`c` is short and evidence comes slowly, but all honest clients are then
alike: with :math:`\tilde A` the median agreement and :math:`s` 1.48 times the median distance from it, a
client stands out by :math:`\tilde A - A_i`, to be compared with :math:`3 s`; of one that has sent less than
the others, :math:`k` updates where :math:`\tilde k` is usual, only the
:math:`\sqrt{(1 + 4/k) / (1 + 4/\tilde k)}`-th part counts. Three clients in ten can neither move the median out of the range of honest agreements nor
make :math:`s` smaller than they are apart.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sojourn.deployment.guard.screens import Arrays, norm_of, tolerated
from sojourn.types import FloatArray, IntArray, Vector

WIDTH = 256
MEMORY = 0.9
ENOUGH = 3
SPREADS = 3.0
"""How many robust standard deviations below the others a client must be to stand out."""
EARLY = 4.0
"""A client's first updates tell less: after so many its distance counts for 1/sqrt(2) of itself."""
GAP = 1.5
"""How many times the second principal direction's variance the first must have to show a group. On the digits with
10 to 100 honest clients the median ratio was 1.1 to 1.4; with a fifth that colludes (min-max, null space) 2.3 to 3.3."""
MOST_MEDIANS = 64
"""Medians that are remembered; of the older half every other one is dropped when there are more."""


class Agreement:
    """Sketches of what every client sends, and what they came to.

    >>> agreement = Agreement(size=1000, clients=4, key=b"secret")
    >>> for client in (1, 2, 3, 0, 1, 2, 3):
    ...     agreement.observe(client, np.ones(1000) if client else -np.ones(1000))
    >>> agreement.values().round(2).tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, *, size: int, clients: int, key: bytes) -> None:
        self.key = key
        self._size = size
        self._signs = _signs(key, size)
        self.fleet = clients
        self._sketches: FloatArray = np.zeros((clients, WIDTH))
        self._rounds: FloatArray = np.zeros(clients)
        self._seen = np.zeros(clients, dtype=np.int64)
        self.heard = np.zeros(clients, dtype=np.bool_)
        """Which clients have sent something, and how many they are."""
        self._heard = 0
        self._agreed: FloatArray = np.zeros(clients)
        self._evidence: FloatArray = np.zeros(clients)
        self.recent: FloatArray = np.full(clients, np.nan)
        """The last cosine of every client: of what it sent recently with the median; NaN before there is one."""
        self._medians = Medians(apart=clients / 2)
        self._age = clients
        self._apart = np.zeros(clients, dtype=np.bool_)
        self._looked = clients
        self._usual = np.full(3, np.nan)

    def observe(self, client: int, update: Vector, round_: int = 0) -> None:
        """Take in a finite update of the model as it was after ``round_`` rounds."""
        whole = update.size - update.size % WIDTH
        signed = update * self._signs
        # In double precision: what no float32 holds would make everybody's median NaN.
        sketch = signed[:whole].reshape(-1, WIDTH).sum(axis=0, dtype=np.float64)
        sketch[: update.size - whole] += signed[whole:]
        norm = norm_of(sketch)
        if norm > 0.0:
            self._sketches[client] *= MEMORY
            self._sketches[client] += (1.0 - MEMORY) * sketch / norm
            self._rounds[client] = MEMORY * self._rounds[client] + (1.0 - MEMORY) * round_
            self._seen[client] += 1
            if not self.heard[client]:
                self.heard[client] = True
                self._heard += 1
            self._weigh(client, round_)

    def forget(self, client: int) -> None:
        """Judge a client anew."""
        self._agreed[client] = self._evidence[client] = 0.0
        self.recent[client] = np.nan
        self._sketches[client] = self._rounds[client] = self._seen[client] = 0
        self._count_heard()

    def _count_heard(self) -> None:
        self.heard = self._seen > 0
        self._heard = int(np.count_nonzero(self.heard))

    def values(self) -> FloatArray:
        """The agreement of every client, in [-1, 1]; NaN where nothing is known of it."""
        found = np.full(self._seen.size, np.nan)
        np.divide(self._agreed, self._evidence, out=found, where=self._evidence > 0.0)
        return found

    def of(self, client: int) -> tuple[float, float]:
        """The agreement of one client, and the evidence for it."""
        evidence = float(self._evidence[client])
        return (float(self._agreed[client]) / evidence if evidence else np.nan), evidence

    def stands_out(self, client: int) -> float:
        """How far the agreement of ``client`` is below the others', 0 unless it is far for them.

        >>> agreement = Agreement(size=1000, clients=10, key=b"secret")
        >>> random = np.random.default_rng(0)
        >>> for turn in range(100):
        ...     sent = random.normal(size=1000) + 0.5
        ...     agreement.observe(turn % 10, sent if turn % 10 else -sent)
        >>> [round(agreement.stands_out(client), 1) for client in range(3)]
        [1.3, 0.0, 0.0]
        """
        if not self._evidence[client] > 0.0 or np.isnan(self._usual[0]):
            return 0.0
        usual, spread, sent = self._usual.tolist()
        own = float(self._agreed[client] / self._evidence[client])
        noise = (1.0 + EARLY / float(self._seen[client])) / (1.0 + EARLY / sent)
        gap = (usual - own) / math.sqrt(max(1.0, noise))
        return gap if gap > SPREADS * spread else 0.0

    def record(self) -> Arrays:
        """Named arrays, for a checkpoint; the key is one of them, and stays with the server."""
        return {
            "key": np.frombuffer(self.key, dtype=np.uint8),
            "sketches": self._sketches,
            "rounds": self._rounds,
            "seen": self._seen,
            "agreed": self._agreed,
            "evidence": self._evidence,
            "recent": self.recent,
            "age": np.array(self._age),
            "apart": self._apart,
            "looked": np.array(self._looked),
            "usual": self._usual,
            "middles": np.array(self._medians.sketches).reshape(-1, WIDTH),
            "middle-rounds": np.array(self._medians.rounds),
            "middle-begun": np.array(self._medians.begun),
        }

    def restore(self, arrays: Arrays) -> None:
        """Take up what `record` gave."""
        self.key = np.asarray(arrays["key"], dtype=np.uint8).tobytes()
        self._signs = _signs(self.key, self._size)
        self._sketches, self._rounds = np.array(arrays["sketches"]), np.array(arrays["rounds"])
        self._seen = np.array(arrays["seen"], dtype=np.int64)
        self._count_heard()
        self._agreed, self._evidence = np.array(arrays["agreed"]), np.array(arrays["evidence"])
        self.recent = np.array(arrays["recent"], dtype=np.float64)
        self._age = int(np.asarray(arrays["age"]))
        self._apart = np.array(arrays["apart"], dtype=np.bool_)
        self._looked = int(np.asarray(arrays["looked"]))
        self._usual = np.array(arrays["usual"], dtype=np.float64)
        self._medians.restore(
            np.array(arrays["middle-rounds"]).tolist(),
            list(np.array(arrays["middles"])),
            float(np.asarray(arrays["middle-begun"])),
        )

    def _weigh(self, client: int, round_: int) -> None:
        """Compare a client with the median, which is computed anew for every eighth of the clients.

        There is none before so many were heard that most of them are honest, if three clients in ten
        may be hostile: whoever answers first would be the measure otherwise. With the first median
        what came until then is compared.
        """
        self._age += 1
        self._looked += 1
        if self._heard < max(ENOUGH, 2 * tolerated(self.fleet) + 1):
            return
        first = not self._medians.rounds
        if self._age > self._heard // 8:
            heard = np.flatnonzero(self.heard)
            weights = 1.0 - MEMORY ** self._seen[heard]
            means = self._sketches[heard] / weights[:, np.newaxis]
            if self._looked > heard.size:
                self._apart[heard] = group_apart(means, tolerated(self.fleet))
                self._looked = 0
            median = _median(means[~self._apart[heard]])
            self._medians.add(float(_median(self._rounds[heard] / weights)), median)
            self._age = 0
            if first:
                for each in heard.tolist():
                    self._compare(each, 0, int(self._seen[each]))
        if not first:
            self._compare(client, round_, 1)
        if self._age == 0:
            known = np.flatnonzero(self._evidence)
            if known.size:
                agreements = self._agreed[known] / self._evidence[known]
                usual = _median(agreements)
                spread = 1.48 * _median(np.abs(agreements - usual))
                self._usual[:] = usual, spread, _median(self._seen[known])

    def _compare(self, client: int, round_: int, times: int) -> None:
        median, consensus = self._medians.about(round_)
        sketch = self._sketches[client]
        norms = norm_of(sketch) * consensus
        if norms > 0.0:
            cosine = self.recent[client] = float(sketch @ median) / norms
            self._agreed[client] += times * consensus**2 * cosine
            self._evidence[client] += times * consensus**2


def _signs(key: bytes, size: int) -> NDArray[np.int8]:
    """Random signs that nobody can know without the key.

    Who knew them could send an update that looks honest in the sketch and is not.
    """
    bits = np.random.default_rng(list(key)).integers(0, 2, size=size, dtype=np.int8)
    return (2 * bits - 1).astype(np.int8)


def group_apart(rows: FloatArray, most: int) -> NDArray[np.bool_]:
    """Which rows are a group of at most ``most`` that stands apart from the others; see the module.

    >>> rows = np.random.default_rng(0).normal(size=(20, 200))
    >>> rows[:4] = 1.0
    >>> np.flatnonzero(group_apart(rows, most=4)).tolist(), group_apart(rows[4:], most=4).tolist().count(True)
    ([0, 1, 2, 3], 0)
    """
    none = np.zeros(len(rows), dtype=np.bool_)
    if not 0 < most < len(rows) - 1:
        return none
    away = rows - rows.mean(axis=0)
    # Of whichever is smaller: both have the same values.
    few = len(rows) <= rows.shape[1]
    variances, directions = np.linalg.eigh(away @ away.T if few else away.T @ away)
    second, first = variances[-2:].tolist()
    if first <= GAP * second:
        return none
    along = directions[:, -1] * math.sqrt(first) if few else away @ directions[:, -1]
    along = along - float(_median(along))
    order = np.argsort(along)
    low, high = order[:most], order[-most:]
    apart = none.copy()
    apart[high if along[high].sum() > -along[low].sum() else low] = True
    rest = along[~apart] - along[~apart].mean()
    return apart if float(rest @ rest) <= second else none


def _median(rows: FloatArray | IntArray) -> FloatArray:
    """``np.median`` over the first axis, which takes several times as long."""
    ordered, half = rows.T.copy(), rows.shape[0] // 2
    ordered.sort(axis=-1)  # in place and along memory, which is twice as fast as across
    upper = ordered[..., half]
    return np.asarray(upper if rows.shape[0] % 2 else (ordered[..., half - 1] + upper) / 2.0)


class Medians:
    """What the median was as the run went on, each with the round that it is about.

    One that is less than ``apart`` rounds after the one before takes its place: it knows more.

    >>> medians = Medians(apart=5.0)
    >>> for round_ in (0.0, 3.0, 50.0):
    ...     medians.add(round_, np.full(WIDTH, round_))
    >>> [float(median[0]) for median, _ in (medians.about(0), medians.about(30))]
    [3.0, 50.0]
    """

    def __init__(self, apart: float) -> None:
        self.apart = apart
        self.rounds: list[float] = []
        self.sketches: list[FloatArray] = []
        self.begun = -np.inf
        self._norms: list[float] = []
        self._rounds: FloatArray | None = None

    def restore(self, rounds: list[float], sketches: list[FloatArray], begun: float) -> None:
        """Take up the medians of a checkpoint."""
        self.rounds, self.sketches, self.begun = rounds, sketches, begun
        self._norms = [norm_of(sketch) for sketch in sketches]
        self._rounds = None

    def add(self, round_: float, sketch: FloatArray) -> None:
        """The newest."""
        self._rounds = None
        if round_ - self.begun < self.apart:
            self.rounds[-1], self.sketches[-1], self._norms[-1] = round_, sketch, norm_of(sketch)
            return
        self.begun = round_
        if len(self.rounds) == MOST_MEDIANS:
            thinned = slice(1, MOST_MEDIANS // 2, 2)
            del self.rounds[thinned], self.sketches[thinned], self._norms[thinned]
        self.rounds.append(round_)
        self.sketches.append(sketch)
        self._norms.append(norm_of(sketch))

    def about(self, round_: int) -> tuple[FloatArray, float]:
        """The one that is about the model nearest to that of ``round_``, and its norm."""
        if self._rounds is None:
            self._rounds = np.array(self.rounds)
        nearest = int(np.abs(self._rounds - round_).argmin())
        return self.sketches[nearest], self._norms[nearest]
