"""What users bring themselves, named ``"module:name"`` wherever a name is asked for."""

import dataclasses
import importlib
import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sojourn.config import Table
from sojourn.errors import InvalidInput, UnknownName


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


def from_table(
    given: str | Mapping[str, Any],
    registry: Mapping[str, type],
    what: str,
    *,
    where: str = "",
    folder: Path | None = None,
) -> Any:
    """The value that a name, or a table of ``name`` and knobs, describes in a configuration file.

    ``registry`` holds what is built in; ``module:name`` finds what is not, relative to ``folder``.
    Knobs are the fields of the dataclass, hyphenated; ``where`` opens the message of an error.
    """
    where = where or what
    table = Table({"name": given} if isinstance(given, str) else given, where)
    name = table.take("name", str)
    if name in registry:
        kind: Any = registry[name]
    elif is_extension(name):
        kind = load_extension(name, what, folder)
        if not isinstance(kind, type):  # a value rather than a class: it has no knobs
            table.close()
            return kind
    else:
        raise UnknownName(what, name, registry)
    knobs = {}
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        value = table.take(field.name.replace("_", "-"), _kinds(field.type), default=None)
        if value is not None:
            knobs[field.name] = value
    table.close()
    try:
        return kind(**knobs)
    except UnknownName:
        raise
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def to_table(value: Any, registry: Mapping[str, type]) -> dict[str, Any]:
    """What `from_table` reads back: the name, and every knob that is set."""
    kind = type(value)
    built_in = any(kind is known for known in registry.values())
    name = value.name if built_in else f"{kind.__module__}:{kind.__qualname__}"
    knobs: dict[str, Any] = dataclasses.asdict(value) if dataclasses.is_dataclass(kind) else {}
    set_knobs = {k.replace("_", "-"): v for k, v in knobs.items() if v is not None}
    return {"name": name, **set_knobs}


def _kinds(annotation: Any) -> tuple[type, ...]:
    """The types that a configuration file may give for a field."""
    offered = typing.get_args(annotation) or (annotation,)
    kinds = tuple(kind for kind in (bool, int, float, str, list) if kind in offered)
    return kinds or (str,)
