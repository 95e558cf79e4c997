"""Sojourn: choose routing, concurrency and learning rate for asynchronous federated learning.

Names are imported when they are first used, so that ``import sojourn`` costs milliseconds; what is
public, and where it lives, stands in ``__init__.pyi``.
"""

import lazy_loader

from sojourn.errors import naming_extras

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = naming_extras()(_attribute)
