r"""How far each client's updates agree with the others'.

A vector :math:`g` is remembered as a sketch of ``WIDTH`` numbers, :math:`s_b = \sum_{j \equiv b}
\epsilon_j g_j` with random signs :math:`\epsilon`, which keeps inner products on average, with an
error of :math:`\sqrt{2/\text{WIDTH}}` of the norms at most (Charikar, Chen and Farach-Colton 2002).
Of every client the exponential mean :math:`m_i` of its normalised sketches is kept. The coordinate-wise
median :math:`c` of these over the clients is short where clients disagree, as their gradients do near
an optimum, and of norm 1 where they are of one mind. A client's agreement is the mean of its cosines
with :math:`c` since the run began, weighted by how much they told,

.. math:: A_i = \sum_t |c_t|^2 \cos(m_{i,t}, c_t) \Big/ \sum_t |c_t|^2,

and the denominator is the *evidence* for it, in updates at a time when all were of one mind. The sums
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
        self._seen = np.zeros(clients, dtype=np.int64)
        self._agreed: FloatArray = np.zeros(clients)
        self._evidence: FloatArray = np.zeros(clients)
        self._middle: FloatArray = np.zeros(WIDTH)
        self._age = clients
        self._enough = max(ENOUGH, min((clients + 1) // 2, MOST_FIRST))

    def observe(self, client: int, update: Vector) -> None:
        """Take in a finite update."""
        sketch = np.zeros(WIDTH)
        whole = update.size - update.size % WIDTH
        signed = update * self._signs
        sketch += signed[:whole].reshape(-1, WIDTH).sum(axis=0)
        sketch[: update.size - whole] += signed[whole:]
        norm = float(np.linalg.norm(sketch))
        if norm > 0.0:
            self._sketches[client] *= MEMORY
            self._sketches[client] += (1.0 - MEMORY) * sketch / norm
            self._seen[client] += 1
            self._weigh(client)

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
            **{"sketches": self._sketches, "seen": self._seen, "middle": self._middle},
            **{"agreed": self._agreed, "evidence": self._evidence, "age": np.array(self._age)},
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `record` gave."""
        self._sketches = np.array(arrays["sketches"])
        self._seen = np.array(arrays["seen"], dtype=np.int64)
        if "evidence" in arrays:  # which earlier versions did not keep
            self._agreed, self._evidence = np.array(arrays["agreed"]), np.array(arrays["evidence"])
            self._middle, self._age = np.array(arrays["middle"]), int(arrays["age"])

    def _weigh(self, client: int) -> None:
        """Compare a client with the middle, which is computed anew for every eighth of the clients."""
        self._age += 1
        heard = np.flatnonzero(self._seen)
        if heard.size < self._enough:
            return
        if self._age > heard.size // 8:
            weights = 1.0 - MEMORY ** self._seen[heard, np.newaxis]
            self._middle = np.median(self._sketches[heard] / weights, axis=0)
            self._age = 0
        own, told = self._sketches[client], float(np.linalg.norm(self._middle))
        norms = float(np.linalg.norm(own)) * told
        if norms > 0.0:
            cosine = float(own @ self._middle) / norms
            self._agreed[client] += told**2 * cosine
            self._evidence[client] += told**2
