from .errors import (
    DataNotFound,
    InvalidFile,
    InvalidInput,
    MissingExtra,
    SojournError,
    UnknownName,
    Unreachable,
)
from .history import History
from .network import (
    Fleet,
    Network,
    balanced_routing,
    built_in_fleet,
    named_routing,
    square_root_routing,
    uniform_routing,
)
from .version import __version__
