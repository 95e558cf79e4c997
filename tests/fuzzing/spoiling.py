"""What is spoilt about a command line or a file, drawn at random."""

import random
from dataclasses import dataclass, field

from tests.fuzzing.folders import Content
from tests.fuzzing.values import CELLS, TOML


@dataclass
class Case:
    """A command line, the files that are other than usual, and the run folders that are there."""

    arguments: list[str]
    files: dict[str, Content] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 60 else f"{word[:40]}..." for word in self.arguments)
        files = {name: text and text[:300] for name, text in self.files.items()}
        return f"sojourn {words}" + (f" with {files}" if files else "")


def paths(draw: random.Random) -> str:
    return draw.choice(
        [
            *("missing.csv", "fifo.csv", "fifo.toml", "/dev/zero", "/dev/null", ".", "folder.csv"),
            *(
                "x" * 300 + ".csv",
                "y" * 5000,
                "a/" * 2500 + "b.csv",
                "fleet.csv/x.csv",
                "binary.csv",
            ),
            *(
                "binary.toml",
                "empty.csv",
                "empty.toml",
                "/proc/self/mem",
                "/root/../proc/1/mem",
                "",
            ),
        ]
    )


def bad_csv(draw: random.Random, text: str) -> bytes:
    kind = draw.random()
    if kind < 0.1:
        return draw.choice([b"", b"\x00" * 100, b"\xff\xfe\x00", b"a" * 200_000, b"\n" * 1000])
    lines = [line.split(",") for line in text.splitlines()]
    row = draw.choice(lines)
    row[draw.randrange(len(row))] = draw.choice(CELLS)
    if kind > 0.85:
        row.append("extra")
    return "\n".join(",".join(row) for row in lines).encode()


def bad_toml(draw: random.Random, text: str) -> bytes:
    kind = draw.random()
    if kind < 0.08:
        return draw.choice(
            [b"", b"\x00" * 100, b"\xff\xfe", b"a" * 200_000, b"[[[", b"x = 1\n" * 3]
        )
    lines = text.splitlines()
    places = [i for i, line in enumerate(lines) if "=" in line]
    place = draw.choice(places)
    key = lines[place].partition("=")[0]
    if kind < 0.16:
        del lines[place]
    elif kind < 0.24:
        lines.insert(place, f"unknown-{draw.randrange(9)} = 1")
    else:
        lines[place] = f"{key}= {draw.choice(TOML)}"
    return ("\n".join(lines) + "\n").encode()
