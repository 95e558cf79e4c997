"""Modules that lie beside a user's files: found, loaded, and carried to where they are needed.

A module is searched in the folder of the file that names it, in that folder's ``extensions`` (where a
run folder keeps copies), in the current folder, and last among what is installed. What lies in one
of the folders may be unknown elsewhere: to other processes, to other machines, to a run folder that
is moved. So its text travels along, as `Sources`.
"""

import ast
import atexit
import hashlib
import importlib
import pickle
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from sojourn.errors import InvalidInput

KEPT_IN = "extensions"
"""Where a run folder keeps the modules that it needs."""

_CHANGING = threading.RLock()
"""Held while ``sys.path`` and ``sys.modules`` are changed: Dask's workers are threads."""

_placed: dict[str, Path] = {}
_MARK = "__sojourn_source__"


Trust = Callable[[str, Path | None], bool]
"""Whether a module may run: its name, and the folder that it lies in (``None``: it is installed)."""


def _everything(module: str, place: Path | None) -> bool:
    return True


_is_trusted: Trust = _everything


def trust_only(is_trusted: Trust = _everything) -> None:
    """From now on run modules of others only if ``is_trusted``; Sojourn's own always run.

    Python programs run what they name; the command line asks before it runs what a file names.
    """
    global _is_trusted
    _is_trusted = is_trusted


class Untrusted(InvalidInput):
    """Code that a file names, and that its reader has not agreed to run.

    Also installed code: importing a module runs it, and what is called in it is the file's choice.
    """

    def __init__(self, module: str, path: Path | None) -> None:
        self._given = module, path
        if path is None:
            where = "if it is installed"
        else:
            where = f"{path}, SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
        super().__init__(
            f"the code of '{module}' ({where}) is named by a file, not by you, "
            "and is not run. If you trust it: sojourn --trust ..., with the same command"
        )

    def __reduce__(self) -> tuple[type["Untrusted"], tuple[str, Path | None]]:
        """Errors come back from other processes, pickled."""
        return Untrusted, self._given


@dataclass(frozen=True)
class Sources:
    """The text of every module that is needed, by its path relative to the folder it lies in."""

    files: Mapping[str, str] = field(default_factory=dict)

    def codes(self) -> dict[str, str]:
        """A digest of what every file says, whatever its comments and blank lines."""
        return {path: _code(text) for path, text in sorted(self.files.items())}

    def write(self, folder: Path) -> None:
        """Write every file into ``folder``."""
        for path, text in self.files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")

    def place(self, folder: Path | None) -> Path:
        """A folder where the files lie: ``folder`` if they do, else one made for this process."""
        if folder is not None and self._lie_in(folder):
            return folder
        digest = hashlib.sha256(repr(sorted(self.files.items())).encode()).hexdigest()
        with _CHANGING:
            if digest not in _placed:
                made = Path(tempfile.mkdtemp(prefix="sojourn-extensions-"))
                atexit.register(shutil.rmtree, made, ignore_errors=True)
                self.write(made)
                _placed[digest] = made
        return _placed[digest]

    def unpickled(self, data: bytes, folder: Path) -> Any:
        """What ``data`` holds, its classes being those of these files, which lie in ``folder``."""
        with _first(self, folder):
            return pickle.loads(data)  # nosec B301 # by this process or one that it started

    def _lie_in(self, folder: Path) -> bool:
        for path, text in self.files.items():
            place = next((p / path for p in _places(folder) if (p / path).is_file()), None)
            if place is None or place.read_text(encoding="utf-8") != text:
                return False
        return True


def sources_of(modules: Iterable[str], folder: Path | None = None) -> Sources:
    """The text of ``modules``, and of what they import, as far as it is not installed.

    >>> sources_of(["json", "sojourn.rules"])
    Sources(files={})
    """
    files: dict[str, str] = {}
    waiting, seen = list(modules), set[str]()
    while waiting:
        name = waiting.pop()
        place = None if name in seen else _place_of(name, folder)
        seen.add(name)
        for path in () if place is None else _files(name, place):
            key = path.relative_to(place or path).as_posix()
            if key not in files:
                files[key] = path.read_text(encoding="utf-8")
                waiting += imported_by(files[key], PurePosixPath(key).parent.parts)
    return Sources(files)


def import_beside(module: str, folder: Path | None = None) -> ModuleType:
    """The module of that name, from the first place in which it is found (see the head of this file).

    A module of the same name with different source is reloaded, so that long-lived workers do not run
    stale code. A module that `trust_only` excludes raises ``Untrusted``.
    """
    place = _place_of(module, folder)
    if not (_is_own(module) or _is_trusted(module, place)):
        raise Untrusted(module, None if place is None else _files(module, place)[-1])
    sources = sources_of([module], folder)
    with _first(sources, folder):
        return importlib.import_module(module)


@contextmanager
def _first(sources: Sources, folder: Path | None) -> Iterator[None]:
    """Within, modules of ``sources`` are imported rather than others; no bytecode is written."""
    texts = {module_name(path): text for path, text in sources.files.items()}
    with _CHANGING:
        if any(not _is_current(name, text) for name, text in texts.items()):
            for name in texts:
                sys.modules.pop(name, None)
        added = [str(place) for place in (_places(folder) if texts else [])]
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        sys.path[:0] = added
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.dont_write_bytecode = before
            for place in added:
                sys.path.remove(place)
        for name, text in texts.items():
            if name in sys.modules:
                vars(sys.modules[name]).setdefault(_MARK, text)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "sojourn"


def _places(folder: Path | None) -> list[Path]:
    here = Path.cwd()
    beside = [] if folder is None else [folder.resolve(), folder.resolve() / KEPT_IN]
    return list(dict.fromkeys([*beside, here]))


def _place_of(module: str, folder: Path | None) -> Path | None:
    """The first folder in which ``module`` lies; ``None`` if it has to be installed."""
    if _is_own(module):
        return None
    return next((place for place in _places(folder) if _files(module, place)), None)


def _files(module: str, place: Path) -> list[Path]:
    """The file of a module and those of the packages it is in."""
    parts = module.split(".")
    packages = [place.joinpath(*parts[:k], "__init__.py") for k in range(1, len(parts) + 1)]
    return [p for p in (*packages, place.joinpath(*parts).with_suffix(".py")) if p.is_file()]


def module_name(path: str) -> str:
    """What a module is called that lies at ``path``, relative to a folder that is searched.

    >>> module_name("mine/rules.py"), module_name("mine/__init__.py")
    ('mine.rules', 'mine')
    """
    parts = list(PurePosixPath(path).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(text: str, package: Sequence[str] = ()) -> Iterator[str]:
    """The modules that a source text of a package may import.

    >>> list(imported_by("import numpy, model\\nfrom mine.data import shares"))
    ['numpy', 'model', 'mine.data', 'mine.data.shares']
    """
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


@lru_cache(maxsize=256)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:  # said by the import, with its line
        return ast.Module([], [])


@lru_cache(maxsize=256)
def _code(text: str) -> str:
    code = ast.dump(_parsed(text)) if _parsed(text).body else text
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def _is_current(name: str, text: str) -> bool:
    """Whether the module of that name, if it is loaded, says what ``text`` says."""
    module = sys.modules.get(name)
    if module is None:
        return True
    loaded = getattr(module, _MARK, None)
    if loaded is None:
        file = getattr(module, "__file__", None)
        loaded = Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else ""
    return _code(loaded) == _code(text)
