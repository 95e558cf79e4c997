"""What CONTRIBUTING.md promises of the source: a folder per layer, one owner per decision."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sojourn"
MODULES = sorted(SOURCE.rglob("*.py"))
MOST_LOOSE_MODULES = 7


def test_the_root_of_the_package_holds_few_modules() -> None:
    loose = sorted(path.name for path in SOURCE.glob("*.py"))
    assert len(loose) <= MOST_LOOSE_MODULES, loose


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_what_a_policy_or_rule_means_has_one_owner() -> None:
    asking = re.compile(r'take\("(policy|rule)"|"(policy|rule)": \(str, dict\)')
    owners = [str(p.relative_to(SOURCE)) for p in MODULES if asking.search(p.read_text())]
    assert owners == ["strategy/choices.py"]


def test_only_the_command_line_serves_pages_or_reproduces_the_paper() -> None:
    for path in MODULES:
        folder = path.relative_to(SOURCE).parts[0]
        text = path.read_text()
        if folder not in ("cli", "live"):
            assert "sojourn.live" not in text, path
        if folder != "cli":
            assert not re.search(r"(from|import) reproduction", text), path
