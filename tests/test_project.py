"""The project's own files agree with each other: versions, interpreters, pins and make targets."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sojourn.version import __version__

ROOT = Path(__file__).resolve().parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(text("pyproject.toml"))["project"]
    return table


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    lines = [line for line in text("constraints.txt").splitlines() if line]
    pairs = (line.split("==") for line in lines)
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def requirements(project: dict[str, Any]) -> list[Requirement]:
    extras = (line for group in project["optional-dependencies"].values() for line in group)
    return [Requirement(line) for line in (*project["dependencies"], *extras)]


def test_the_version_is_the_same_everywhere() -> None:
    assert yaml.safe_load(text("CITATION.cff"))["version"] == __version__
    assert re.search(
        rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", text("CHANGELOG.md"), re.M
    )


def test_the_licence_of_what_pages_contain_is_shipped(project: dict[str, Any]) -> None:
    script = "src/sojourn/report/templates/plotly-basic.min.js"
    assert "MIT license" in text(script)[:300] and "MIT" in project["license"]
    for name in project["license-files"]:
        assert text(name).strip(), name


UNPINNED = ("mlflow-skinny", "wandb", "pyarrow")
"""What the development environment does not install: tests of it are skipped, and say so."""


def test_dependencies_are_ranges_that_hold_the_pinned_versions(
    project: dict[str, Any], pins: dict[str, Version]
) -> None:
    for requirement in requirements(project):
        assert not any(part.operator in ("==", "===") for part in requirement.specifier), (
            requirement
        )
        if requirement.name not in ("sojourn", *UNPINNED):
            pinned = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pinned), (str(requirement), str(pinned))


def test_the_interpreters_are_the_same_everywhere(project: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: 3."
    claimed = [
        f"3.{name.removeprefix(prefix)}" for name in project["classifiers"] if prefix in name
    ]
    workflow = yaml.safe_load(text(".github/workflows/test.yml"))
    for job in ("test", "base"):
        assert workflow["jobs"][job]["strategy"]["matrix"]["python-version"] == claimed
    found = re.search(r"^PYTHONS \?= (.*)$", text("Makefile"), re.M)
    assert found and found[1].split() == claimed


def test_the_workflow_calls_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))
    workflow = yaml.safe_load(text(".github/workflows/test.yml"))
    commands = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert commands
    for command in commands:
        program, *words = command.split()
        assert program == "make"
        assert {word for word in words if "=" not in word and word[0].isalpha()} - {
            "matrix.python-version"
        } <= targets


def test_pre_commit_has_the_pinned_ruff(pins: dict[str, Version]) -> None:
    (hooks,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert Version(hooks["rev"].removeprefix("v")) == pins["ruff"]
    assert [hook["id"] for hook in hooks["hooks"]] == ["ruff-check", "ruff-format"]


def test_contributing_maps_every_package() -> None:
    source = ROOT / "src" / "sojourn"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    named = set(re.findall(r"^      (\w+)/ ", text("CONTRIBUTING.md"), re.M))
    assert named == packages
