"""The console sessions of the documentation, typed in order into an empty folder."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = re.compile(r"^```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)^```", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```console\n(\$ .*?)^```", re.MULTILINE | re.DOTALL)
SHELL = set("|&;<>$*?`()")
"""What only a shell understands."""
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if SESSION.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_console_sessions_print_what_the_page_shows(page, commands, tmp_path):
    """Captioned blocks are files; ``...`` stands for anything, and spaces count as one."""
    text = page.read_text()
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for session in SESSION.findall(text):
        for entry in session.split("$ ")[1:]:
            command, _, shown = entry.partition("\n")
            name, *arguments = shlex.split(command)
            if name == "sojourn" and not SHELL & set(command):
                printed = commands.said(tmp_path, *arguments, COLUMNS="100")
            else:
                printed = _typed(command, tmp_path)
            assert doctest.OutputChecker().check_output(shown, printed, flags), (
                f"$ {command}\nthe page shows:\n{shown}\nit prints:\n{printed}"
            )


def _typed(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_the_tutorial_has_sessions():
    assert ROOT / "docs" / "tutorial.md" in PAGES
