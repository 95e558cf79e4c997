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
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.types import FloatArray, Vector

WIDTH = 256
MEMORY = 0.9
ENOUGH = 3
MOST_FIRST = 16
"""Who answers first may be hostile: half of the clients, at most so many, are waited for."""
MOST_MIDDLES = 64
"""Medians that are kept; of the older half every other one is let go when there are more."""


class Agreement:
    """Sketches of what every client sends, and what they came to.

    >>> agreement = Agreement(size=1000, clients=4, seed=0)
    >>> for client in (1, 2, 3, 0, 1, 2, 3):
    ...     agreement.observe(client, np.ones(1000) if client else -np.ones(1000))
    >>> agreement.values().round(2).tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, *, size: int, clients: int, seed: int) -> None:
        bits = np.random.default_rng([seed, 0x5C]).integers(0, 2, size=size, dtype=np.int8)
        self._signs = (2 * bits - 1).astype(np.int8)
        self._sketches: FloatArray = np.zeros((clients, WIDTH))
        self._rounds: FloatArray = np.zeros(clients)
        self._seen = np.zeros(clients, dtype=np.int64)
        self._agreed: FloatArray = np.zeros(clients)
        self._evidence: FloatArray = np.zeros(clients)
        self._middles = Middles(apart=clients / 2)
        self._age = clients
        self._enough = max(ENOUGH, min((clients + 1) // 2, MOST_FIRST))

    def observe(self, client: int, update: Vector, round_: int = 0) -> None:
        """Take in a finite update of the model as it was after ``round_`` rounds."""
        sketch = np.zeros(WIDTH)
        whole = update.size - update.size % WIDTH
        signed = update * self._signs
        # In double precision: what no float32 holds would make everybody's median NaN.
        sketch += signed[:whole].reshape(-1, WIDTH).sum(axis=0, dtype=np.float64)
        sketch[: update.size - whole] += signed[whole:]
        norm = float(np.linalg.norm(sketch))
        if norm > 0.0:
            self._sketches[client] *= MEMORY
            self._sketches[client] += (1.0 - MEMORY) * sketch / norm
            self._rounds[client] = MEMORY * self._rounds[client] + (1.0 - MEMORY) * round_
            self._seen[client] += 1
            self._weigh(client, round_)

    def forget(self, client: int) -> None:
        """Judge a client anew."""
        self._agreed[client] = self._evidence[client] = 0.0
        self._sketches[client] = self._rounds[client] = self._seen[client] = 0

    def values(self) -> FloatArray:
        """The agreement of every client, in [-1, 1]; NaN where nothing is known of it."""
        found = np.full(self._seen.size, np.nan)
        np.divide(self._agreed, self._evidence, out=found, where=self._evidence > 0.0)
        return found

    def of(self, client: int) -> tuple[float, float]:
        """The agreement of one client, and the evidence for it."""
        evidence = float(self._evidence[client])
        return (float(self._agreed[client]) / evidence if evidence else np.nan), evidence

    def record(self) -> dict[str, NDArray[Any]]:
        """Named arrays, for a checkpoint."""
        return {
            **{"sketches": self._sketches, "rounds": self._rounds, "seen": self._seen},
            **{"agreed": self._agreed, "evidence": self._evidence, "age": np.array(self._age)},
            **self._middles.record(),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `record` gave; earlier versions kept less, and are begun anew from."""
        if "middles" not in arrays:
            return
        self._sketches, self._rounds = np.array(arrays["sketches"]), np.array(arrays["rounds"])
        self._seen = np.array(arrays["seen"], dtype=np.int64)
        self._agreed, self._evidence = np.array(arrays["agreed"]), np.array(arrays["evidence"])
        self._age = int(arrays["age"])
        self._middles.restore(arrays)

    def _weigh(self, client: int, round_: int) -> None:
        """Compare a client with the middle, which is computed anew for every eighth of the clients.

        Before half of them were heard there is none; with the first what came until then is compared.
        """
        self._age += 1
        heard = np.flatnonzero(self._seen)
        if heard.size < self._enough:
            return
        first = not self._middles.known
        if self._age > heard.size // 8:
            weights = 1.0 - MEMORY ** self._seen[heard]
            middle = _median(self._sketches[heard] / weights[:, np.newaxis])
            self._middles.add(float(_median(self._rounds[heard] / weights)), middle)
            self._age = 0
        if first:
            for each in heard.tolist():
                self._compare(each, self._middles.about(0), int(self._seen[each]))
        else:
            self._compare(client, self._middles.about(round_), 1)

    def _compare(self, client: int, middle: FloatArray, times: int) -> None:
        own, told = self._sketches[client], float(np.linalg.norm(middle))
        norms = float(np.linalg.norm(own)) * told
        if norms > 0.0:
            cosine = float(own @ middle) / norms
            self._agreed[client] += times * told**2 * cosine
            self._evidence[client] += times * told**2


def _median(rows: FloatArray) -> FloatArray:
    """``np.median`` over the first axis, which for few rows takes several times as long."""
    ordered, half = np.sort(rows, axis=0), rows.shape[0] // 2
    return np.asarray(
        ordered[half] if rows.shape[0] % 2 else (ordered[half - 1] + ordered[half]) / 2.0
    )


class Middles:
    """What the median was as the run went on, each with the round that it is about.

    One that is less than ``apart`` rounds after the one before takes its place: it knows more.

    >>> middles = Middles(apart=5.0)
    >>> for round_ in (0.0, 3.0, 50.0):
    ...     middles.add(round_, np.full(WIDTH, round_))
    >>> float(middles.about(0)[0]), float(middles.about(30)[0])
    (3.0, 50.0)
    """

    def __init__(self, apart: float) -> None:
        self.apart = apart
        self.known = 0
        self._rounds: FloatArray = np.zeros(MOST_MIDDLES)
        self._sketches: FloatArray = np.zeros((MOST_MIDDLES, WIDTH))
        self._begun = -np.inf

    def add(self, round_: float, sketch: FloatArray) -> None:
        """The newest."""
        if round_ - self._begun >= self.apart:
            self._begun = round_
            if self.known == MOST_MIDDLES:
                self._thin()
            self.known += 1
        self._rounds[self.known - 1], self._sketches[self.known - 1] = round_, sketch

    def about(self, round_: int) -> FloatArray:
        """The one that is about the model nearest to that of ``round_``."""
        nearest = int(np.abs(self._rounds[: self.known] - round_).argmin())
        return np.asarray(self._sketches[nearest])

    def record(self) -> dict[str, NDArray[Any]]:
        """Named arrays, for a checkpoint."""
        known = slice(0, self.known)
        return {
            "middles": self._sketches[known],
            "middle-rounds": self._rounds[known],
            "middle-begun": np.array(self._begun),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `record` gave."""
        self.known = arrays["middles"].shape[0]
        self._sketches[: self.known] = arrays["middles"]
        self._rounds[: self.known] = arrays["middle-rounds"]
        self._begun = float(arrays["middle-begun"])

    def _thin(self) -> None:
        kept = np.delete(np.arange(MOST_MIDDLES), np.s_[1 : MOST_MIDDLES // 2 : 2])
        self.known = kept.size
        self._rounds[: kept.size] = self._rounds[kept]
        self._sketches[: kept.size] = self._sketches[kept]
