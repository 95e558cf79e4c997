"""What every file written by Sojourn says about its origin."""

import datetime
import functools
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sojourn._support.configuration import without_control
from sojourn.version import __version__

_LIBRARIES = ("numpy", "scipy", "numba", "torch", "flwr")


def provenance(**inputs: object) -> dict[str, Any]:
    """Version, environment and inputs of a result, ready for JSON or TOML.

    Inputs that are ``None`` are left out. Nothing about the user or the machine's name is recorded.

    >>> provenance(seed=1)["inputs"]
    {'seed': 1}
    """
    return {
        "sojourn": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "libraries": dict(_library_versions()),
        # Names of files can hold what no text can.
        "inputs": {k: without_control(value) for k, value in inputs.items() if value is not None},
    }


@functools.cache
def _library_versions() -> Mapping[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
