"""Writing a small Flower app for a user to edit."""

from importlib import resources
from pathlib import Path

from sojourn.errors import InvalidInput
from sojourn.files import replacing

PACKAGE = "federated"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    f"{PACKAGE}/task.py": "task.py",
    f"{PACKAGE}/server_app.py": "server_app.py",
    f"{PACKAGE}/client_app.py": "client_app.py",
}


def write_app(folder: Path) -> list[Path]:
    """Write the app into a new or empty folder; the files written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"'{folder}' exists and is not empty. Name another folder.")
    source = resources.files("sojourn.deploy") / "template"
    written = []
    for name, template in FILES.items():
        target = folder / name
        with replacing(target) as temporary:
            text = (source / f"{template}.template").read_text(encoding="utf-8")
            temporary.write_text(text, encoding="utf-8")
        written.append(target)
    (folder / PACKAGE / "__init__.py").touch()
    return written
