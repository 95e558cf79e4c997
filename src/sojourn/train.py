"""The former name of `sojourn.training`. It stays importable."""

from typing import Any

import sojourn.training as training

__all__ = dir(training)


def __getattr__(name: str) -> Any:
    return getattr(training, name)
