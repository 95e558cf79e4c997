"""Schedules on disk: a folder of plain NumPy arrays beside ``schedule.json``.

The folder is written under a temporary name beside its final one and renamed when it is
complete; a run that is interrupted leaves nothing behind.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from sojourn._support.configuration import parse_json
from sojourn._support.files import is_file, read_text
from sojourn._support.provenance import provenance
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Network
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.streams import seed_from_record, seed_record

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule

FORMAT = "sojourn-schedule-2"

_ARRAYS: dict[str, np.dtype[Any]] = {
    "client": np.dtype("<i4"),
    "dispatched": np.dtype("<i8"),
    "time": np.dtype("<f8"),
    "pending_client": np.dtype("<i4"),
    "pending_dispatched": np.dtype("<i8"),
    "spent": np.dtype("<f8"),
    "cut": np.dtype("<i8"),
}
_GROWING = ("client", "dispatched", "time")
_OPTIONAL = ("spent", "cut")
_SETTINGS = "schedule.json"


class ScheduleWriter:
    """Writes a schedule piece by piece; a context manager that cleans up if it is left early."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._target = Path(folder)
        if self._taken():
            raise InvalidInput(
                f"{folder} exists and is not a schedule: choose another folder to write to"
            )
        self._rounds = 0

    def _taken(self) -> bool:
        try:
            return self._target.exists() and not (self._target / _SETTINGS).is_file()
        except OSError as error:
            raise _unwritable(self._target, error) from error

    def __enter__(self) -> Self:
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = Path(
                tempfile.mkdtemp(dir=self._target.parent, prefix=f".{self._target.name}.")
            )
        except OSError as error:
            raise _unwritable(self._target, error) from error
        self._files: dict[str, BinaryIO] = {
            name: (self._temporary / f"{name}.npy").open("wb") for name in _GROWING
        }
        for name in _GROWING:
            self._write_header(name)
        return self

    def append(self, *arrays: NDArray[Any]) -> None:
        """Add rounds: their ``client``, ``dispatched`` and ``time``."""
        for name, values in zip(_GROWING, arrays, strict=True):
            np.ascontiguousarray(values, dtype=_ARRAYS[name]).tofile(self._files[name])
        self._rounds += int(arrays[0].size)

    def finish(self, schedule: "Schedule") -> None:
        """Add all of ``schedule`` but the rounds, which were appended, and give the folder its name."""
        for name in _GROWING:
            self._write_header(name)
            os.fsync(self._files[name].fileno())
            self._files[name].close()
        for name in ("pending_client", "pending_dispatched", *_OPTIONAL):
            values = getattr(schedule, name)
            if values is not None:
                np.save(self._temporary / f"{name}.npy", values.astype(_ARRAYS[name]))
        settings = {
            "format": FORMAT,
            "rounds": self._rounds,
            "scenario": schedule.scenario.to_table(),
            "seed": seed_record(schedule.seed),
            "horizon": schedule.horizon,
            "network": schedule.network.to_table(),
            "provenance": provenance(seed=seed_record(schedule.seed)),
        }
        (self._temporary / _SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")
        self._temporary.chmod(0o755)
        self._take_place()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        shutil.rmtree(self._temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise _unwritable(self._target, error) from error

    def _write_header(self, name: str) -> None:
        # NumPy pads the header so that the number of rounds can be filled in at the end.
        file = self._files[name]
        file.seek(0)
        np.lib.format.write_array_header_1_0(
            file,
            {
                "descr": np.lib.format.dtype_to_descr(_ARRAYS[name]),
                "fortran_order": False,
                "shape": (self._rounds,),
            },
        )
        file.flush()

    def _take_place(self) -> None:
        if not self._target.exists():
            self._temporary.replace(self._target)
            return
        aside = self._temporary.with_name(f"{self._temporary.name}.old")
        self._target.replace(aside)
        self._temporary.replace(self._target)
        shutil.rmtree(aside)


def _unwritable(path: Path, error: OSError) -> InvalidFile:
    name = str(path)
    return InvalidFile(f"{name[:200]}: the schedule cannot be written ({error.strerror or error})")


def read_fields(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a ``Schedule``, its arrays memory-mapped."""
    path = Path(folder)
    where = path / _SETTINGS
    if not is_file(where):
        raise InvalidFile(f"{folder}: not a schedule (there is no {_SETTINGS})")
    settings = parse_json(read_text(where, encoding="utf-8"), str(where))
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise InvalidFile(f"{folder}: not a schedule in the format {FORMAT}")
    arrays = {
        name: _mapped(path / f"{name}.npy", dtype)
        for name, dtype in _ARRAYS.items()
        if name not in _OPTIONAL or is_file(path / f"{name}.npy")
    }
    try:
        network = Network.from_table(settings["network"], f"{path / _SETTINGS}: network")
        scenario = Scenario.from_table(settings["scenario"], path.parent)
        horizon = settings["horizon"]
        seed = seed_from_record(settings["seed"])
        rounds = settings["rounds"]
    except (KeyError, TypeError) as error:
        raise InvalidFile(f"{path / _SETTINGS}: the entry {error} is missing or wrong") from error
    if any(arrays[name].shape != (rounds,) for name in _GROWING):
        raise InvalidFile(f"{folder}: the arrays do not have the {rounds} rounds it should have")
    return {**arrays, "network": network, "scenario": scenario, "seed": seed, "horizon": horizon}


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    array: NDArray[Any]
    try:
        if path.stat().st_size <= 128:  # no elements: there is nothing to map
            array = np.load(path, allow_pickle=False)
        else:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path}: cannot be read as a NumPy array ({error})") from error
    if array.dtype != dtype or array.ndim != 1:
        raise InvalidFile(f"{path}: should be a vector of {dtype}")
    return array
