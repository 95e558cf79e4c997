"""The ledger of a folder: a digest of every finished file, so that edits by hand are noticed.

``ledger.jsonl`` has one line for each file that was finished, with its SHA-256. A line is appended
before the file takes its place, so that a process that is killed leaves no file without its line;
of a file that was written several times every version counts as written. A folder without a ledger,
as earlier versions wrote them, is taken as it is. The ledger finds mistakes and careless edits. It
does not stop a person who changes the ledger too.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn._support.files import read_text, replacing
from sojourn.errors import InvalidFile

NAME = "ledger.jsonl"
CHANGED = "changed since it was written"

_accepts = False
_noted: dict[Path, str] = {}


def accept_edits(accepted: bool) -> None:
    """From now on use edited files (and note them), or refuse them, which is the default."""
    global _accepts
    _accepts = accepted
    _noted.clear()


def noted() -> list[str]:
    """The edited files that were used since `accept_edits`, each with what is wrong about it."""
    return [f"{path}: {what}" for path, what in _noted.items()]


class Ledger:
    """The digests of the files of ``folder``, by their paths in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     path = Path(name) / "summary.json"
    ...     with Ledger(name).writing(path) as temporary:
    ...         _ = temporary.write_text("{}")
    ...     print(Ledger(name).difference(path))
    ...     _ = path.write_text("[]")
    ...     print(Ledger(name).difference(path))
    None
    changed since it was written
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / NAME

    @contextmanager
    def writing(self, path: Path) -> Iterator[Path]:
        """Yield a temporary path that is recorded and takes the place of ``path`` when the block succeeds."""
        with replacing(path) as temporary:
            yield temporary
            line = {"file": self._name(path), "sha256": _digest(temporary)}
            with self.path.open("ab", buffering=0) as file:  # one line in one piece
                file.write(f"\n{json.dumps(line)}\n".encode())

    def difference(self, path: Path) -> str | None:
        """How ``path`` differs from what was written; ``None`` if it does not, or there is no ledger."""
        if not (path.is_file() and self.path.is_file()):
            return None
        digests = self._digests().get(self._name(path))
        if digests is None:
            return f"not in {NAME}: written by hand or by an earlier version"
        return None if _digest(path) in digests else CHANGED

    def check(self, path: Path) -> None:
        """Raise ``InvalidFile`` if ``path`` was edited, unless `accept_edits` says to use it."""
        what = self.difference(path)
        if what is None:
            return
        if not _accepts:
            raise InvalidFile(
                f"{path}: {what}. Restore it, or delete it to have it computed again; to use it as it "
                "is: sojourn --use-edited ..., with the same command"
            )
        _noted[path] = what

    def note(self, path: Path) -> None:
        """Note an edit of a file that may be edited, if it is one of the ledger's."""
        if (what := self.difference(path)) == CHANGED:
            _noted[path] = what

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _digests(self) -> dict[str, set[str]]:
        """A line that cannot be read counts for nothing: its file is then in no line, and refused."""
        found: dict[str, set[str]] = {}
        for line in read_text(self.path, encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                found.setdefault(str(entry["file"]), set()).add(str(entry["sha256"]))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        return found


def digest_of_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> NDArray[np.uint8]:
    """A digest of named arrays, to be one of them in a file that is replaced often.

    >>> one = digest_of_arrays({"weights": np.zeros(2)})
    >>> bool((one == digest_of_arrays({"weights": np.ones(2)})).all())
    False
    """
    made = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        made.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        made.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return np.frombuffer(made.digest(), dtype=np.uint8)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
