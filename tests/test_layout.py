"""What CONTRIBUTING.md promises of the source: small modules, few of them, straight imports."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sojourn"
MODULES = sorted(SOURCE.rglob("*.py"))


def test_modules_are_small():
    long = {str(p.relative_to(SOURCE)): len(p.read_text().splitlines()) for p in MODULES}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_training_has_three_rooms():
    files = [p for p in MODULES if SOURCE / "train" in p.parents and p.name != "__init__.py"]
    assert {str(p.parent.relative_to(SOURCE / "train")) for p in files} == {
        "data",
        "replay",
        "experiment",
    }
    assert len(files) <= 20


def test_nobody_inside_imports_the_whole_package():
    """Names of the package itself are imported lazily, which hides who needs whom."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert "sojourn" not in [alias.name for alias in node.names], path
            elif isinstance(node, ast.ImportFrom) and node.module == "sojourn":
                names = [alias.name for alias in node.names]
                assert all(
                    (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file() for name in names
                ), path
