"""Callers who check their own programs find Sojourn typed: the docs' Python and whole scripts."""

import doctest
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def examples(path: Path) -> str:
    """The Python in a page, one program."""
    return "".join(one.source for one in doctest.DocTestParser().get_examples(path.read_text()))


def test_the_python_in_the_docs_and_users_scripts_pass_mypy_strict(tmp_path):
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    programs = []
    for page in pages:
        # Training of one's own is shown as people write it, without annotations.
        if page.stem != "your-data" and (source := examples(page)):
            path = tmp_path / f"page_{page.stem.lower()}.py"
            path.write_text(source)
            programs.append(path)
    assert len(programs) > 5
    programs += sorted((ROOT / "tests" / "journeys" / "tasks").glob("*.py"))
    # Strict, as the package itself is checked: so what was found out about it then is used again.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *map(str, programs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
