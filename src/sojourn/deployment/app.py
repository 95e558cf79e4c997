"""An app: the folder that a user edits, and that Flower runs."""

import importlib
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn._support.configuration import parse_toml
from sojourn._support.files import read_text, replacing
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


def write_app(folder: Path) -> list[Path]:
    """Write the app into a new or empty folder; the files written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"'{folder}' exists and is not empty. Name another folder.")
    source = resources.files("sojourn.deployment") / "template"
    written = []
    for name, template in FILES.items():
        target = folder / name
        with replacing(target) as temporary:
            text = (source / f"{template}.template").read_text(encoding="utf-8")
            temporary.write_text(text.replace("@VERSION@", __version__), encoding="utf-8")
        written.append(target)
    (folder / PACKAGE / "__init__.py").touch()
    return written


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
