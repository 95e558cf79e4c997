"""An app: the folder that a user edits, and that Flower runs."""

import ast
import importlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from sojourn._support.configuration import parse_toml
from sojourn._support.files import is_file, read_text, write_text
from sojourn._support.user_modules import imported_by, module_name, sources_of
from sojourn.errors import InvalidFile, InvalidInput, reading
from sojourn.version import __version__

if TYPE_CHECKING:
    from sojourn.deployment.client import ProblemFunction
    from sojourn.strategy import Strategy

PACKAGE = "federated"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    f"{PACKAGE}/__init__.py": "__init__.py",
    f"{PACKAGE}/task.py": "task.py",
    f"{PACKAGE}/server_app.py": "server_app.py",
    f"{PACKAGE}/client_app.py": "client_app.py",
    "ops/sojourn-superlink.service": "superlink.service",
    "ops/sojourn-run.service": "run.service",
    "ops/sojourn-client.service": "client.service",
    "ops/Dockerfile": "Dockerfile",
    "ops/compose.yaml": "compose.yaml",
    "ops/kubernetes.yaml": "kubernetes.yaml",
}
LEFT_OUT = ("test_*.py", "*_test.py")
"""What Flower never packs into an app."""


class WrittenApp(NamedTuple):
    """The files of an app, and the modules that it needs and that have to be installed where it runs."""

    files: list[Path]
    installed: list[str]
    lacks_rate: bool
    """The strategy gives no learning rate: one has to be written into ``pyproject.toml``."""


def write_app(
    folder: Path, strategy: Path | None = None, problem: Path | None = None
) -> WrittenApp:
    """Write the app into a new or empty folder.

    The app runs ``strategy``, a file of `sojourn tune` or `sojourn plan`, and learns what the function
    ``problem`` of the file ``problem`` returns; both files are copied, and beside them the users' own
    modules that they need.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"'{folder}' exists and is not empty. Name another folder.")
    source = resources.files("sojourn.deployment") / "template"
    texts = {
        name: (source / f"{template}.template")
        .read_text(encoding="utf-8")
        .replace("@VERSION@", __version__)
        for name, template in FILES.items()
    }
    installed: list[str] = []
    lacks_rate = False
    if problem is not None:
        text = _task_text(problem)
        texts[f"{PACKAGE}/task.py"] = text
        _add_modules(texts, imported_by(text), problem)
    if strategy is not None:
        texts["pyproject.toml"], named, read = _running(texts["pyproject.toml"], strategy)
        texts[f"{PACKAGE}/{strategy.name}"] = read_text(strategy)
        installed = sorted(named - _add_modules(texts, named | set(read.modules), strategy))
        lacks_rate = not read.learning_rates
    written = []
    for name, text in texts.items():
        target = folder / name
        write_text(target, text)
        written.append(target)
    return WrittenApp(written, installed, lacks_rate)


def _add_modules(texts: dict[str, str], modules: Iterable[str], needed_by: Path) -> set[str]:
    """Add to the app those modules, and what they import, that lie beside ``needed_by``; their names."""
    files = sources_of(modules, needed_by.parent).files
    for name, text in files.items():
        if any(fnmatch(PurePath(name).name, pattern) for pattern in LEFT_OUT):
            raise InvalidInput(
                f"{needed_by} needs {name}, and Flower leaves {' and '.join(LEFT_OUT)} out of an app. "
                "Give the module another name."
            )
        target = f"{PACKAGE}/{name}"
        if texts.setdefault(target, text) != text:
            raise InvalidInput(
                f"{needed_by} needs a module of yours in {name}, and the app has another {target}, its own "
                "or the problem's. Give the module another name, or use one version of it for both."
            )
    return {module_name(name) for name in files}


def _task_text(path: Path) -> str:
    """The text of a Python file that has a function ``problem``; nothing in it is run."""
    text = read_text(path, encoding="utf-8")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        at = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise InvalidFile(f"{path}: cannot be read as Python ({at})") from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if "problem" not in functions:
        there = f"; there are {', '.join(functions[:10])}" if functions else ""
        raise InvalidFile(f"{path}: there is no function 'problem' in it{there}")
    return text


def _running(settings: str, path: Path) -> tuple[str, set[str], "Strategy"]:
    """The text of ``pyproject.toml`` with a strategy and its number of clients, its modules, itself.

    The modules are those that the file names, as far as they are not Sojourn's or Python's. Those of
    the strategy's classes need not be among them: a value of a module may have the class of another one.
    """
    from sojourn.strategy import Choices, Strategy, modules_named, read_strategy_file

    file = read_strategy_file(path)
    with reading(str(path)):  # a rule or policy that cannot be found is said now
        strategy = Strategy.resolve(Choices(), file=file, folder=path.parent, name=path.name)
    reason = strategy.not_deployable()
    if reason is not None:
        raise InvalidFile(f"{path}: {reason}")
    for key, value in (("clients", str(file.fleet.size)), ("strategy", json.dumps(path.name))):
        settings = re.sub(
            rf"^{key} = \S+", f"{key} = {value}", settings, count=1, flags=re.MULTILINE
        )
    elsewhere = {
        name
        for name in modules_named(path) & set(sys.modules)
        if name.partition(".")[0] not in {"sojourn", *sys.stdlib_module_names}
    }
    return settings, elsewhere, strategy


def app_config(app: Path) -> dict[str, object]:
    """The run configuration in an app's ``pyproject.toml``, nested keys joined by dots."""
    path = app / "pyproject.toml"
    try:
        text = read_text(path, encoding="utf-8")
    except InvalidFile as error:
        raise InvalidFile(f"{error}. Make an app with: sojourn deploy init DIR") from error
    config: object = parse_toml(text, str(path))
    for name in ("tool", "flwr", "app", "config"):
        config = config.get(name) if isinstance(config, dict) else None
    if not isinstance(config, dict):
        raise InvalidFile(f"{path}: there is no [tool.flwr.app.config], so it is no app")
    return _flat(config)


def unpacked_files(app: Path) -> dict[str, object]:
    """The settings that name CSV files beside ``task.py``, with full paths: Flower packs no such files."""
    config, folder = app_config(app), task_folder(app)
    found: dict[str, object] = {}
    for key in ("fleet", "routing"):
        name = config.get(key)
        if isinstance(name, str) and name.endswith(".csv") and is_file(folder / name):
            found[key] = str((folder / name).resolve())
    return found


def task_folder(app: Path) -> Path:
    """Where an app keeps ``task.py``, and the files that its configuration names."""
    found = sorted(app.glob("*/task.py"))
    if not found:
        raise InvalidFile(f"{app}: there is no task.py in it, so it is no app of Sojourn's")
    return found[0].parent


def load_problem(app: Path) -> "ProblemFunction":
    """The function ``problem`` of an app's ``task.py``, imported as Flower would."""
    folder = task_folder(app)
    if str(app.resolve()) not in sys.path:
        sys.path.insert(0, str(app.resolve()))
    function: ProblemFunction | None = getattr(
        importlib.import_module(f"{folder.name}.task"), "problem", None
    )
    if function is None:
        raise InvalidFile(f"{folder / 'task.py'}: there is no function 'problem' in it")
    return function


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
