"""An app: the folder that a user edits, and that Flower runs."""

import ast
import importlib
import json
import re
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn._support.configuration import parse_toml
from sojourn._support.files import read_text, write_text
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.version import __version__

if TYPE_CHECKING:
    from sojourn.deployment.client import ProblemFunction

PACKAGE = "federated"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
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


def write_app(
    folder: Path, strategy: Path | None = None, problem: Path | None = None
) -> list[Path]:
    """Write the app into a new or empty folder; the files written.

    The app runs ``strategy``, a file of `sojourn tune` or `sojourn plan`, and learns what the function
    ``problem`` of the file ``problem`` returns; both files are copied.
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
    if problem is not None:
        texts[f"{PACKAGE}/task.py"] = _task_text(problem)
    if strategy is not None:
        texts["pyproject.toml"] = _running(texts["pyproject.toml"], strategy)
        texts[f"{PACKAGE}/{strategy.name}"] = read_text(strategy)
    written = []
    for name, text in texts.items():
        target = folder / name
        write_text(target, text)
        written.append(target)
    (folder / PACKAGE / "__init__.py").touch()
    return written


def _task_text(path: Path) -> str:
    """The text of a Python file that has a function ``problem``; nothing in it is run."""
    text = read_text(path, encoding="utf-8")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InvalidFile(f"{path}: cannot be read as Python ({error})") from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if "problem" not in functions:
        there = f"; there are {', '.join(functions[:10])}" if functions else ""
        raise InvalidFile(f"{path}: there is no function 'problem' in it{there}")
    return text


def _running(settings: str, strategy: Path) -> str:
    """The text of ``pyproject.toml`` with a strategy and its number of clients."""
    from sojourn.strategy import read_strategy_file

    clients = read_strategy_file(strategy).fleet.size
    for key, value in (("clients", str(clients)), ("strategy", json.dumps(strategy.name))):
        settings = re.sub(
            rf"^{key} = \S+", f"{key} = {value}", settings, count=1, flags=re.MULTILINE
        )
    return settings


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
