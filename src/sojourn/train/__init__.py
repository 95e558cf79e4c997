"""Training in virtual time: schedules replayed on PyTorch problems, and experiments made of them.

Names are imported when they are first used, so that looking at ``sojourn.train`` does not import
PyTorch.
"""

from typing import Any

import lazy_loader

from sojourn.errors import EXTRAS, MissingExtra

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _attribute(name)
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            raise MissingExtra(error.name, extra=EXTRAS[error.name]) from error
        raise
