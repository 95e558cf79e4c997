"""What an experiment may become in a folder that holds part of it already."""

from pathlib import Path
from typing import Any

from sojourn.errors import InvalidFile
from sojourn.train.experiment.experiment import Experiment

FREE = ("seeds", "pilot-seeds", "targets")
"""What decides which runs there are, or what is told of them, and changes none."""


def check_grows(before: Experiment, now: Experiment, folder: Path) -> None:
    """Raise unless every run in ``folder`` would come out as it did, or longer.

    Seeds, strategies, learning rates and targets may come and go: each run is named after its
    strategy, seed and rate. ``time`` or ``rounds`` may grow; all runs are then made again, so that
    they are evaluated at the times of the longer run. Anything else would change what is kept.
    """
    old, new = before.signature(), now.signature()
    kept = {entry["name"]: entry for entry in old.pop("strategy")}
    for entry in new.pop("strategy"):
        _check_strategy(kept.get(entry["name"]), entry, folder)
    for key in ("time", "rounds"):
        if key in old and key in new and new[key] < old[key]:
            raise _refused(folder, f"its '{key}' is {old[key]:g}, and {new[key]:g} is shorter")
        if key in old and key in new:
            del old[key], new[key]
    own, theirs = new.pop("extensions", {}), old.pop("extensions", {})
    for path in sorted({*own} & {*theirs}):
        if own[path] != theirs[path]:
            raise _refused(folder, f"'{path}', which it runs, says something else now")
    for key in sorted({*old, *new} - {*FREE}):
        if old.get(key) != new.get(key):
            raise _refused(folder, f"its '{key}' differs")


def _check_strategy(old: dict[str, Any] | None, new: dict[str, Any], folder: Path) -> None:
    if old is None:
        return
    for key in sorted({*old, *new} - {"learning-rate"}):
        if old.get(key) != new.get(key):
            raise _refused(
                folder,
                f"the '{key}' of its strategy '{new['name']}' differs. Give the changed strategy a "
                "name of its own to have both",
            )


def _refused(folder: Path, what: str) -> InvalidFile:
    return InvalidFile(
        f"'{folder}' was made by another experiment: {what}. Runs that are kept would change: give "
        "another --out for this one."
    )
