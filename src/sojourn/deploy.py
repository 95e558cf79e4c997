"""The former name of `sojourn.deployment`. It stays importable."""

from typing import Any

import sojourn.deployment as deployment

__all__ = list(deployment.__all__)


def __getattr__(name: str) -> Any:
    return getattr(deployment, name)
