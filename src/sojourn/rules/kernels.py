"""Arithmetic on long vectors in one pass over the memory, compiled; the same bits as NumPy's in two."""

from typing import Any

from numpy.typing import NDArray

from sojourn._support.compiling import njit


@njit(cache=True, nogil=True)
def scaled_sum(
    weights: NDArray[Any], step: float, direction: NDArray[Any], result: NDArray[Any]
) -> None:
    """``result`` becomes ``step * direction + weights``, each rounded, all of one precision."""
    for place in range(weights.size):
        result[place] = step * direction[place] + weights[place]
