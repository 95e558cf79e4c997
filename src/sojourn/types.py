"""Types that cross from one module to another: arrays, and what long work calls with its steps."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
"""Images and labels as files keep them."""
Vector: TypeAlias = NDArray[np.floating]
"""A flat vector of a model's weights, or of their change, in the model's own precision."""
Step: TypeAlias = Callable[[str], None]
"""Called with the name of every step of work that may take long."""
