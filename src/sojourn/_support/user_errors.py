"""Errors in users' own code, in one sentence."""

import sys
import traceback
from pathlib import Path


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those frames of an error that are neither Sojourn's nor a library's, outermost first."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file() and not _is_library(Path(frame.filename).resolve())
    ]


def users_error(error: BaseException) -> str | None:
    """Where users' own code raised ``error``, or was given what it cannot take; ``None`` if it did not."""
    frames = users_frames(error)
    if not frames:
        return None
    hint = ""
    if isinstance(error, FileNotFoundError) and not Path(str(error.filename)).is_absolute():
        hint = f". It is looked for in the working folder, {Path.cwd()}"
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    last = frames[-1]
    return (
        f"your code, {Path(last.filename).name}, line {last.lineno}, in {last.name}: "
        f"{type(error).__name__}: {error}{hint}{notes}"
    )


def _is_library(file: Path) -> bool:
    """Whether a file belongs to Sojourn, to Python or to an installed package."""
    places = (Path(__file__).parents[1], sys.prefix, sys.base_prefix)
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or any(
        file.is_relative_to(Path(place).resolve()) for place in places
    )
