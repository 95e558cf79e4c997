"""Training in virtual time: replay a schedule on a PyTorch problem.

``sojourn.train`` is a package that can also be called: ``sojourn.train(schedule, problem, rule,
learning_rate=..., seed=...)`` is `sojourn.train.train`. Its names are imported when they are first
used, so that looking at ``sojourn.train`` does not import PyTorch.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import lazy_loader

from sojourn.errors import MissingExtra

if TYPE_CHECKING:
    from sojourn.history import History

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _attribute(name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "sklearn", "joblib"):
            raise MissingExtra(error.name, extra="train") from error
        raise


class _CallableModule(ModuleType):
    """The package itself, as a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> "History":
        """Call `sojourn.train.train`."""
        history: History = __getattr__("train")(*args, **kwargs)
        return history


sys.modules[__name__].__class__ = _CallableModule
