"""Training in virtual time: schedules replayed on PyTorch problems, and experiments made of them.

Names are imported when they are first used, so that looking at ``sojourn.training`` does not import
PyTorch.
"""

import lazy_loader

from sojourn.errors import naming_extras

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = naming_extras()(_attribute)
