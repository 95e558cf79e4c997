"""Values by name, in configuration and back: built in, or users' own as ``"module:name"``."""

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sojourn._support.checks import check_number, check_whole
from sojourn._support.configuration import Table
from sojourn._support.user_modules import import_beside
from sojourn.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Parts = Mapping[object, tuple[str, Mapping[str, type]]]
"""Parameters that are themselves named values: what they are called and a registry, by annotation."""


Whole = TypeVar("Whole", bound=int | None)
Real = TypeVar("Real", bound=float | None)
Each = TypeVar("Each", bound=float | tuple[float, ...] | None)


def whole(default: Whole, *, least: int = 1) -> Whole:
    """A parameter that is a whole number of at least ``least``, or ``None`` if that is the default."""
    return dataclasses.field(default=default, metadata={"check": partial(check_whole, least=least)})


def real(
    default: Real, *, above: float | None = None, least: float | None = None, most: float = math.inf
) -> Real:
    """A parameter that is a number within these bounds, or ``None`` if that is the default."""
    check = partial(check_number, above=above, least=least, most=most)
    return dataclasses.field(default=default, metadata={"check": check})


def fraction(default: Real) -> Real:
    """A parameter of at least 0 and below 1, or ``None`` if that is the default."""
    return real(default, least=0.0, most=math.nextafter(1.0, 0.0))


def per_client(default: Each, check: Callable[..., object]) -> Each:
    """A parameter that is one number for all clients, or a list with one for each: held as a tuple."""
    return dataclasses.field(default=default, metadata={"check": check, "per client": True})


class Checked:
    """A dataclass whose parameters are checked as `whole`, `real`, `fraction` and `per_client` say.

    >>> @dataclasses.dataclass
    ... class Buffer(Checked):
    ...     size: int = whole(10)
    >>> Buffer(0)
    Traceback (most recent call last):
    sojourn.errors.InvalidInput: size must be a whole number of at least 1; it is 0
    """

    def __post_init__(self) -> None:
        for parameter in dataclasses.fields(cast("DataclassInstance", self)):
            check, value = parameter.metadata.get("check"), getattr(self, parameter.name)
            if check is None or (value is None and parameter.default is None):
                continue
            several = "per client" in parameter.metadata and isinstance(value, list | tuple)
            if several:
                object.__setattr__(self, parameter.name, tuple(value))
            for number in value if several else (value,):
                check(parameter.name, number)


class Parameters(Checked):
    """Checks the parameters of a frozen dataclass, and shows those that are set."""

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in set_parameters(self).items())
        return f"{type(self).__name__}({parameters})"


def set_parameters(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    changed = {}
    for field in dataclasses.fields(value):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if getattr(value, field.name) != default:
            changed[field.name] = getattr(value, field.name)
    return changed


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

    The module lies in ``folder`` or in the current one, or is installed. ``what`` says in an error
    what was asked for: rule, policy, law, objective or problem.

    >>> load_extension("math:tau", "number")
    6.283185307179586
    """
    if not is_extension(name):
        raise InvalidInput(f"{what} '{name}': write it as module:name, such as mine:{what}")
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        meant = f"{module_name.removesuffix('.py')}:{attribute}"
        raise InvalidInput(f"{what} '{name}': a module is named without .py: write {meant}")
    try:
        module = import_beside(module_name, folder)
    except SyntaxError as error:
        raise InvalidInput(
            f"{what} '{name}': {Path(error.filename or module_name).name}, line {error.lineno}: {error.msg}"
        ) from error
    except ImportError as error:
        place = Path.cwd() if folder is None else folder.resolve()
        raise InvalidInput(
            f"{what} '{name}': the module '{module_name}' cannot be imported ({error}). It must "
            f"be installed, or lie in {place.name or place}."
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        offered = [name for name, value in vars(module).items() if _is_own(value, module_name)]
        there = f"; there are {', '.join(offered[:10])}" if offered else ""
        raise InvalidInput(
            f"{what} '{name}': there is no '{attribute}' in {module_name}.py{there}"
        ) from None


def _is_own(value: object, module: str) -> bool:
    """Whether a module defines a function or class itself, for others to use."""
    own = getattr(value, "__module__", None) == module and callable(value)
    return own and not str(getattr(value, "__name__", "_")).startswith("_")


def split_parameter(kind: str, text: str, offered: Iterable[str]) -> tuple[str, str | None]:
    """The name and the parameter in ``text``, such as ``mlp(64)``; a name must be one that is offered.

    >>> split_parameter("partition", "labels(3)", ["labels"])
    ('labels', '3')
    """
    match = re.fullmatch(r"\s*([a-z0-9-]+)\s*(?:\(\s*([^()\s]+)\s*\))?\s*", text)
    names = list(offered)
    if match is None or match[1] not in names:
        raise UnknownName(kind, match[1] if match else text, names)
    return match[1], match[2]


def from_table(
    given: str | Mapping[str, object],
    registry: Mapping[str, type],
    what: str,
    *,
    where: str = "",
    folder: Path | None = None,
    parts: Parts | None = None,
) -> Any:
    """The value that a name, or a table of ``name`` and parameters, describes in a configuration file.

    ``registry`` holds what is built in; ``module:name`` finds what is not, relative to ``folder``.
    Parameters are the fields of the dataclass, hyphenated; ``where`` opens the message of an error.
    """
    table = Table({"name": given} if isinstance(given, str) else given, where or what)
    name = table.take("name", str)
    if name in registry:
        kind: Any = registry[name]
    elif is_extension(name):
        kind = load_extension(name, what, folder)
    else:
        raise UnknownName(what, name, registry)
    if not isinstance(kind, type):  # a value rather than a class: it has no parameters
        table.close()
        return kind
    parameters = {}
    types = _types(kind)
    for parameter in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if parameter.init:
            value = _taken(table, parameter.name, types.get(parameter.name), parts or {}, folder)
            if value is not None:
                parameters[parameter.name] = value
    table.close()
    try:
        return kind(**parameters)
    except UnknownName:
        raise
    except InvalidInput as error:
        raise InvalidInput(f"{table.where}: {error}") from error
    except TypeError as error:
        raise InvalidInput(
            f"{table.where}: {name} cannot be made from its parameters: {error}"
        ) from error


def to_table(
    value: object, registry: Mapping[str, type], shared: Iterable[str] = ()
) -> dict[str, object]:
    """What `from_table` reads back: the name, and every parameter that is not ``None``.

    Parameters in ``shared`` are written down only where they differ from their defaults. What users
    bring is named by its module and class, where it can be found again by them.
    """
    built_in = any(type(value) is known for known in registry.values())
    return {"name": _name(value, built_in), **_parameters(value, tuple(shared))}


def modules_of(*values: object) -> Iterator[str]:
    """The modules that define the classes of ``values`` and of their parameters."""
    for value in values:
        yield type(value).__module__
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from modules_of(*(getattr(value, f.name) for f in dataclasses.fields(value)))


@lru_cache(maxsize=256)
def _types(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except NameError:  # an annotation that only type checkers can read
        return {}


def _taken(
    given: Table, parameter: str, annotation: object, parts: Parts, folder: Path | None
) -> Any:
    """The value of a parameter, if it is there: a number, text, a list, or a table with a name."""
    key = parameter.replace("_", "-")
    if annotation in parts:
        value = given.take(key, (str, dict), default=None)
        if value is None:
            return None
        what, registry = parts[annotation]
        where = f"{given.where}: {key}"
        return from_table(value, registry, what, where=where, folder=folder, parts=parts)
    several = typing.get_origin(annotation) is tuple
    offered = (annotation,) if several else typing.get_args(annotation) or (annotation,)
    read_as = {tuple: list, typing.Literal: str}
    wanted = [read_as.get(typing.get_origin(kind) or kind, kind) for kind in offered]
    plain = (bool, int, float, str, list, dict)
    kinds = tuple(kind for kind in plain if kind in wanted) or plain
    value = given.take(key, kinds, default=None)
    listed = isinstance(value, list) and list not in offered and list in wanted
    return tuple(value) if listed else value


def _name(value: object, built_in: bool) -> str:
    kind = type(value)
    place = f"{kind.__module__}:{kind.__qualname__}"
    found = not built_in and is_extension(place) and kind.__module__ != "__main__"
    return place if found else str(getattr(value, "name", ""))


def _parameters(value: object, shared: tuple[str, ...]) -> dict[str, object]:
    if not dataclasses.is_dataclass(value):
        return {}
    changed = set_parameters(value)
    values = {
        parameter.name: getattr(value, parameter.name) for parameter in dataclasses.fields(value)
    }
    written = {k: v for k, v in values.items() if k in changed or k not in shared}
    return {k.replace("_", "-"): _written(v, shared) for k, v in written.items() if v is not None}


def _written(value: object, shared: tuple[str, ...]) -> object:
    if isinstance(value, tuple):
        return list(value)
    if dataclasses.is_dataclass(value):
        built_in = type(value).__module__.partition(".")[0] == "sojourn"
        return {"name": _name(value, built_in), **_parameters(value, shared)}
    return value
