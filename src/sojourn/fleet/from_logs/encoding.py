"""The text of a log: compressed or not, in the encoding that it is written in."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

from sojourn._support.files import MOST_TEXT, read_bytes
from sojourn.errors import InvalidFile

Opened = gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile
COMPRESSED: dict[bytes, Callable[[io.BytesIO], Opened]] = {
    b"\x1f\x8b": lambda data: gzip.GzipFile(fileobj=data),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""How files begin that are compressed."""
PARQUET = b"PAR1"
OTHERS = {
    b"PK\x03\x04": "a workbook or an archive: export its table as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook: export its table as CSV",
    b"SQLite format 3\x00": "a database: export its table as CSV",
    b"ORC": "an ORC file: write it as CSV or Parquet",
    b"ARROW1": "an Arrow file: write it as CSV or Parquet",
    b"Obj\x01": "an Avro file: write it as CSV or JSON lines",
}
"""How files begin that no log is read from, and what they are."""
SMALL, MOST_TIMES = 10_000_000, 200
"""Bytes that a compressed log may have in any case, and how many times as long as its file it may be otherwise:
logs are 5 to 50 times as long, and what is made to fill memory a thousand times."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
WINDOWS = "cp1252"


def is_parquet(path: Path) -> bool:
    """Whether a file says that it is Parquet, by its name or its first bytes."""
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    if not path.is_file():  # a pipe may never be written to
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(PARQUET)) == PARQUET
    except OSError:
        return False


def read_log_text(path: Path) -> tuple[str, list[str]]:
    """The text of a log, and notes on how it was read."""
    data = read_bytes(path)
    for begins, what in OTHERS.items():
        if data.startswith(begins):
            raise InvalidFile(f"{path}: is {what}")
    for begins, opened in COMPRESSED.items():
        if data.startswith(begins):
            data = _unpacked(path, opened(io.BytesIO(data)), len(data))
            break
    if data.startswith(UTF_16):
        return data.decode("utf-16", "replace"), []
    if data[1:400:2].count(0) > 100:
        return data.decode("utf-16-le", "replace"), []
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", "replace")
    # Some bytes of a log in UTF-8 may be broken; a log in which no letter beyond ASCII is UTF-8 is not.
    if text.isascii() or any(ord(letter) > 127 and letter != "\ufffd" for letter in set(text)):
        return text, []
    return data.decode(WINDOWS, "replace"), ["the log is not UTF-8 and is read as Windows-1252"]


def _unpacked(path: Path, file: Opened, packed: int) -> bytes:
    most = min(MOST_TEXT, max(SMALL, MOST_TIMES * packed))
    try:
        with file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InvalidFile(f"{path}: cannot be unpacked ({error})") from error
    if len(data) > most:
        raise InvalidFile(
            f"{path}: too large: more than {most:,} bytes from a file of {packed:,}. If it is a log, unpack it "
            "yourself"
        )
    return data
