r"""How far each client's updates agree with the others'.

A vector :math:`g` is remembered as a sketch of ``WIDTH`` numbers, :math:`s_b = \sum_{j \equiv b}
\epsilon_j g_j` with random signs :math:`\epsilon`, which keeps inner products on average, with an
error of :math:`\sqrt{2/\text{WIDTH}}` of the norms at most (Charikar, Chen and Farach-Colton 2002).
Of every client the exponential mean of its normalised sketches is kept; its agreement is the cosine
between it and the coordinate-wise median of the other clients'. Clients whose data differ agree
little near an optimum, where their gradients cancel: a negative agreement is a reason to look, and
only -0.5 or less, held for long, one to act.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.types import FloatArray, Vector

WIDTH = 256
MEMORY = 0.9
ENOUGH = 3


class Agreement:
    """Sketches of what every client sends.

    >>> agreement = Agreement(size=1000, clients=4, seed=0)
    >>> for client in range(4):
    ...     agreement.observe(client, np.ones(1000) if client else -np.ones(1000))
    >>> agreement.values().round(2).tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, *, size: int, clients: int, seed: int) -> None:
        bits = np.random.default_rng([seed, 0x5C]).integers(0, 2, size=size, dtype=np.int8)
        self._signs = (2 * bits - 1).astype(np.int8)
        self._sketches: FloatArray = np.zeros((clients, WIDTH))
        self._seen = np.zeros(clients, dtype=np.int64)

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

    def values(self) -> FloatArray:
        """The agreement of every client, in [-1, 1]; NaN where too little was seen.

        The median is that of all clients, which differs from that of the others by little.
        """
        found = np.full(self._seen.size, np.nan)
        heard = np.flatnonzero(self._seen)
        if heard.size < ENOUGH:
            return found
        known = self._sketches[heard]
        middle = np.median(known / np.linalg.norm(known, axis=1, keepdims=True), axis=0)
        norm = float(np.linalg.norm(middle))
        if norm > 0.0:
            found[heard] = known @ middle / (np.linalg.norm(known, axis=1) * norm)
        return found

    def of(self, client: int) -> tuple[float, int]:
        """The agreement of one client, and how many of its updates that is from."""
        return float(self.values()[client]), int(self._seen[client])

    def record(self) -> dict[str, NDArray[Any]]:
        """Named arrays, for a checkpoint."""
        return {"sketches": self._sketches, "seen": self._seen}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `record` gave."""
        self._sketches = np.array(arrays["sketches"])
        self._seen = np.array(arrays["seen"], dtype=np.int64)
