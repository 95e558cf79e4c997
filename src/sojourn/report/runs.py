"""What a folder given to the report holds: findings of a reproduction, and training runs."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sojourn.errors import InvalidFile
from sojourn.history import History
from sojourn.network import BUILT_IN_FLEETS, Fleet, Network, built_in_fleet
from sojourn.report import verdict
from sojourn.report.verdict import Finding

HISTORY = "history.jsonl"
SUMMARY = "summary.json"
EXPERIMENT = "experiment.toml"
_DEPTH = 3


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder: its histories, what was asked for, and the network of every strategy."""

    name: str
    histories: tuple[History, ...]
    experiment: Mapping[str, Any]
    summary: Mapping[str, Any]
    networks: Mapping[str, Network]

    @property
    def targets(self) -> list[float]:
        """The accuracies whose times the summary tells, rising."""
        found: set[float] = set()
        for entry in self.summary.get("strategies", []):
            found.update(float(key) for key in entry.get("time_to", {}))
        return sorted(found)

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run folder; only the histories must be there."""
        histories = History.read(folder / HISTORY)
        if not histories:
            raise InvalidFile(f"{folder / HISTORY}: holds no run")
        experiment, summary = _toml(folder / EXPERIMENT), _json(folder / SUMMARY)
        return cls(
            name=folder.resolve().name,
            histories=tuple(histories),
            experiment=experiment,
            summary=summary,
            networks=_networks(folder, experiment, summary),
        )


def collect(folders: Iterable[str | Path]) -> tuple[list[Finding], list[Run]]:
    """Every finding and every run in these folders or up to three levels below them.

    Runs under a finding or beside one are part of it and are not listed again.
    """
    findings: list[Finding] = []
    runs: list[Run] = []
    for given in folders:
        folder = Path(given)
        if not folder.is_dir():
            raise InvalidFile(f"{folder}: not a folder. Give folders that a command wrote.")
        before = len(findings) + len(runs)
        _walk(folder, _DEPTH, findings, runs)
        if len(findings) + len(runs) == before:
            raise InvalidFile(
                f"{folder}: nothing to report: no {HISTORY} and no {verdict.FILE} in it. "
                "Give a folder written by 'sojourn train', 'reproduce', 'demo' or 'deploy'."
            )
    findings.sort(key=lambda finding: (len(finding.claim), finding.claim))
    return findings, runs


def _walk(folder: Path, depth: int, findings: list[Finding], runs: list[Run]) -> None:
    if (folder / verdict.FILE).is_file():
        findings.append(Finding.read(folder))
        return
    if (folder / HISTORY).is_file():
        runs.append(Run.read(folder))
        return
    children = sorted(path for path in folder.iterdir() if path.is_dir())
    if any((child / verdict.FILE).is_file() for child in children):
        children = [child for child in children if (child / verdict.FILE).is_file()]
    if depth:
        for child in children:
            _walk(child, depth - 1, findings, runs)


def _networks(
    folder: Path, experiment: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[str, Network]:
    """The network of every strategy, where the folder tells the fleet and the routings."""
    name = experiment.get("fleet")
    if name is None:
        return {}
    fleet = built_in_fleet(name) if name in BUILT_IN_FLEETS else Fleet.from_csv(folder / name)
    return {
        str(entry["name"]): Network(fleet, entry["routing"], entry["concurrency"])
        for entry in summary.get("strategies", [])
        if "routing" in entry and "concurrency" in entry
    }


def _toml(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: not valid TOML: {error}") from error


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise InvalidFile(f"{path}: must be a JSON object")
    return values
