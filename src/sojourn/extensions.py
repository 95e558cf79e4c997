"""What users bring themselves, named ``"module:name"`` wherever a name is asked for."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sojourn.errors import InvalidInput


def is_extension(name: str) -> bool:
    """Whether ``name`` has the form ``module:name``.

    >>> is_extension("mine.rules:Table"), is_extension("async-sgd")
    (True, False)
    """
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    return bool(colon) and all(part.isidentifier() for part in parts) and attribute.isidentifier()


def load_extension(name: str, what: str, folder: Path | None = None) -> Any:
    """The object that ``name`` (``module:name``) stands for.

    The module must be installed or lie in ``folder``, by default the current one. ``what`` says in
    an error what was asked for: rule, policy, law, objective or problem.

    >>> load_extension("math:tau", "number")
    6.283185307179586
    """
    if not is_extension(name):
        raise InvalidInput(f"{what} '{name}': write it as module:name, such as mine:{what}")
    module_name, _, attribute = name.partition(":")
    place = Path.cwd() if folder is None else folder.resolve()
    with _importable(place):
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise InvalidInput(
                f"{what} '{name}': the module '{module_name}' cannot be imported ({error}). It must "
                f"be installed, or lie in {place.name or place}."
            ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise InvalidInput(f"{what} '{name}': there is no '{attribute}' in it") from None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    here = str(folder)
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
