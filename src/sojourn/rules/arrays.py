"""What rules do with arrays, whichever library they are of: the array API standard.

Weights, and the vectors that a rule keeps, stay in the library and on the device that they came in.
Counts of a rule are small, and always NumPy's. On NumPy's arrays the operations are those that they
always were, to the bit.
"""

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sojourn.types import Vector


def namespace(array: object) -> Any:
    """The functions for arrays of this kind: what the array says, or the module it is of (PyTorch).

    >>> namespace(np.zeros(2)) is np
    True
    """
    own = getattr(array, "__array_namespace__", None)
    return sys.modules[type(array).__module__.partition(".")[0]] if own is None else own()


def _is_numpy(array: object) -> bool:
    return isinstance(array, np.ndarray)


LONG_VECTOR = 2**15
"""Numbers. Beyond this a second pass over the memory costs more than calling compiled code."""


def is_long(first: Vector, second: Vector) -> bool:
    """Whether these are NumPy's vectors for compiled code: long, contiguous, of one precision."""
    return (
        isinstance(first, np.ndarray)  # Asked for every task.
        and first.size >= LONG_VECTOR
        and _is_numpy(second)
        and first.shape == second.shape
        and first.ndim == 1
        and first.dtype == second.dtype
        and first.dtype.char in "fd"
        and first.flags.c_contiguous
        and second.flags.c_contiguous
    )


ALIGNMENT = 64
"""Bytes of a line of the cache. Where all vectors begin at one, results do not depend on the place."""
LEAST_KEPT = 2**21
"""Bytes. To keep the memory of shorter vectors costs more calls than it saves."""
MOST_FREE = 3
"""Vectors that nobody holds any more and whose memory is kept for the next ones."""
MOST_FREE_BYTES = 192 * 2**20
"""What they take at most: a server of a model of 100 MB promises how many times its weights it holds."""


class _Memory:
    """Memory of one vector, which begins at a line of the cache, and how NumPy is told of it.

    That is put down once: to slice and to view an array again for every version takes five times as
    long.
    """

    __slots__ = ("_held", "interface", "kind", "nbytes", "size")

    def __init__(self, size: int, kind: "np.dtype[Any]") -> None:
        held = np.empty(size * kind.itemsize + ALIGNMENT, dtype=np.uint8)
        begin = held.ctypes.data + -held.ctypes.data % ALIGNMENT
        self._held, self.size, self.kind, self.nbytes = held, size, kind, held.nbytes
        self.interface = {
            "version": 3,
            "shape": (size,),
            "typestr": kind.str,
            "data": (begin, False),
        }


_free: list[_Memory] = []


class _Lease:
    """Memory of a vector, kept for the next one when the last view of it is gone."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self.__array_interface__ = memory.interface

    def __del__(
        self,
        free: list[_Memory] = _free,
        most: int = MOST_FREE,
        most_bytes: int = MOST_FREE_BYTES,
    ) -> None:
        # Defaults, since the names of the module may be gone when a process ends.
        free.append(self._memory)
        del free[:-most]
        while sum(memory.nbytes for memory in free) > most_bytes:
            del free[:1]


def long_vector(size: int, kind: DTypeLike) -> NDArray[Any]:
    """A vector that is not filled; a large one begins at a line of the cache, in memory used before.

    Memory that a process asks for anew costs more than to compute what is put there: the system clears
    it page by page, each time for vectors of 32 MB and more.

    >>> long_vector(4, np.float32).shape
    (4,)
    """
    kind = np.dtype(kind)
    if size * kind.itemsize < LEAST_KEPT:
        return np.empty(size, dtype=kind)
    return np.asarray(_Lease(_taken(size, kind) or _Memory(size, kind)))


def _taken(size: int, kind: "np.dtype[Any]") -> _Memory | None:
    """Free memory of such a vector, if there is any; what a thread has popped no other one gets."""
    others, found = [], None
    while _free and found is None:
        try:
            memory = _free.pop()
        except IndexError:
            break
        if memory.size == size and memory.kind == kind:
            found = memory
        else:
            others.append(memory)
    if others:
        _free.extend(reversed(others))
    return found


def forget_free_vectors() -> None:
    """Do not keep the memory of vectors that nobody holds any more."""
    _free.clear()


def joined(first: NDArray[Any], second: NDArray[Any], kind: DTypeLike) -> NDArray[Any]:
    """Two vectors one after the other, in one precision.

    >>> joined(np.ones(2), np.zeros(1), np.float32)
    array([1., 1., 0.], dtype=float32)
    """
    made = long_vector(first.size + second.size, kind)
    return np.concatenate((first, second), out=made, casting="same_kind")


def zeros(shape: tuple[int, ...], like: Vector) -> Vector:
    """Zeros of the kind, the precision and the device of ``like``."""
    if _is_numpy(like):
        return np.zeros(shape, dtype=like.dtype)
    found: Vector = namespace(like).zeros(shape, dtype=like.dtype, device=like.device)
    return found


def placed(values: Vector, like: Vector) -> Vector:
    """NumPy's ``values`` in the kind, the precision and the device of ``like``."""
    if _is_numpy(like):
        return values.astype(like.dtype)
    found: Vector = namespace(like).asarray(values, dtype=like.dtype, device=like.device)
    return found


def copied(array: Vector) -> Vector:
    """An array of its own with the same numbers."""
    if _is_numpy(array):
        return array.copy()
    found: Vector = namespace(array).asarray(array, copy=True)
    return found


def count_of(array: Vector) -> int:
    """How many numbers an array has.

    >>> count_of(np.zeros((2, 3)))
    6
    """
    return math.prod(array.shape)


def norm(array: Vector) -> float:
    """The Euclidean norm of all numbers of an array.

    >>> norm(np.array([3.0, 4.0]))
    5.0
    """
    if _is_numpy(array):
        return float(np.linalg.norm(array))
    return float(namespace(array).linalg.vector_norm(array))


def root(array: Vector) -> Vector:
    """The square root of every number."""
    found: Vector = namespace(array).sqrt(array)
    return found


def raise_to(largest: Vector, array: Vector) -> None:
    """Replace every number of ``largest`` by that of ``array`` where it is larger."""
    largest[...] = namespace(array).maximum(largest, array)


def mean_of_rows(table: Vector, chosen: NDArray[np.bool_] | None = None) -> Vector:
    """The mean of the rows of a table, or of those ``chosen``: NumPy's truth values, one per row.

    >>> mean_of_rows(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([False, True])).tolist()
    [3.0, 4.0]
    """
    if _is_numpy(table):
        return np.asarray((table if chosen is None else table[chosen]).mean(axis=0))
    xp = namespace(table)
    if chosen is not None:
        table = xp.stack([table[int(row), ...] for row in np.flatnonzero(chosen)])
    found: Vector = xp.mean(table, axis=0)
    return found


def reshaped(array: Vector, shape: tuple[int, ...]) -> Vector:
    """The same numbers in another shape."""
    found: Vector = namespace(array).reshape(array, shape)
    return found
