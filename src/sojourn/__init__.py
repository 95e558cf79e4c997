"""Sojourn: choose routing, concurrency and learning rate for asynchronous federated learning.

Names are imported when they are first used, so that ``import sojourn`` costs milliseconds; what is
public, and where it lives, stands in ``__init__.pyi``.
"""

from typing import Any

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _attribute(name)
    except ModuleNotFoundError as error:
        from sojourn.errors import EXTRAS, MissingExtra

        if error.name in EXTRAS:
            raise MissingExtra(error.name, extra=EXTRAS[error.name]) from error
        raise
