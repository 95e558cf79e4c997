"""Weights of past versions, each kept exactly as long as a task in flight needs it."""

from sojourn.types import Vector


class Versions:
    """Reference-counted weights by version number.

    >>> import numpy as np
    >>> versions = Versions()
    >>> versions.retain(0, np.ones(2)), versions.retain(0, np.ones(2))
    (None, None)
    >>> versions.release(0), versions[0].tolist(), versions.release(0), len(versions)
    (None, [1.0, 1.0], None, 0)
    """

    def __init__(self) -> None:
        self._weights: dict[int, Vector] = {}
        self._uses: dict[int, int] = {}

    def retain(self, version: int, weights: Vector) -> None:
        """Another task needs ``weights``, which are those of ``version``."""
        self._weights.setdefault(version, weights)
        self._uses[version] = self._uses.get(version, 0) + 1

    def release(self, version: int) -> None:
        """A task that needed ``version`` is over."""
        self._uses[version] -= 1
        if not self._uses[version]:
            del self._uses[version], self._weights[version]

    def __getitem__(self, version: int) -> Vector:
        return self._weights[version]

    def __len__(self) -> int:
        return len(self._weights)

    def uses(self) -> dict[int, int]:
        """How many tasks need each version."""
        return dict(self._uses)
