"""Inside the package every import names a module, so that the checker of layers sees it."""

import ast
from pathlib import Path

import pytest

import sojourn

SOURCES = sorted(Path(sojourn.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
def test_nobody_imports_the_package_as_a_whole(path: Path) -> None:
    """The public names are loaded lazily: an import of them hides where they come from."""
    whole = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(name.name == "sojourn" for name in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module == "sojourn" or node.level))
    ]
    assert whole == []
