"""What a folder given to the report holds: findings of a reproduction, and training runs."""

from collections.abc import Iterable
from pathlib import Path

from sojourn.errors import InvalidFile
from sojourn.report import verdict
from sojourn.report.verdict import Finding
from sojourn.runfolder import Run, RunFolder

_DEPTH = 3


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
                f"{folder}: nothing to report: no {RunFolder(folder).history_path.name} and no {verdict.FILE} in it. "
                "Give a folder written by 'sojourn train', 'reproduce', 'demo' or 'deploy'."
            )
    findings.sort(key=lambda finding: (len(finding.claim), finding.claim))
    return findings, runs


def _walk(folder: Path, depth: int, findings: list[Finding], runs: list[Run]) -> None:
    if (folder / verdict.FILE).is_file():
        findings.append(Finding.read(folder))
        return
    run = RunFolder(folder)
    if run.has_histories:
        runs.append(run.read())
        return
    children = sorted(path for path in folder.iterdir() if path.is_dir())
    if any((child / verdict.FILE).is_file() for child in children):
        children = [child for child in children if (child / verdict.FILE).is_file()]
    if depth:
        for child in children:
            _walk(child, depth - 1, findings, runs)
