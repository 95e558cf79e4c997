"""What a person sees on a terminal: nothing cut, words for symbols, one colour, what comes next."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.cli.deploy import _headline, _picture
from sojourn.cli.output import CHOSEN, print_table

LONG = "a class of phones whose name is long"


def shown(width: int, terminal: bool) -> list[str]:
    table = Table("class", *(f"quantity {k}" for k in range(9)), box=None, pad_edge=False)
    for name in (LONG, "short"):
        table.add_row(name, *(f"{k}.123456" for k in range(9)), style=CHOSEN)
    file = io.StringIO()
    print_table(Console(file=file, width=width, force_terminal=terminal, no_color=True), table)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()


def test_columns_that_do_not_fit_a_terminal_stand_in_a_further_block() -> None:
    lines = shown(80, terminal=True)
    assert max(map(len, lines)) <= 80
    assert sum(LONG in line for line in lines) == 3
    found = [number for line in lines if LONG in line for number in re.findall(r"\d\.123456", line)]
    assert found == [f"{k}.123456" for k in range(9)]
    assert not any("…" in line for line in lines)


def test_columns_are_dropped_in_the_order_given_and_that_is_said() -> None:
    table = Table("class", *(f"quantity {k}" for k in range(9)), box=None, pad_edge=False)
    table.add_row(LONG, *(f"{k}.12 ± 0.34" for k in range(9)))
    file = io.StringIO()
    drop = [f"quantity {k}" for k in (1, 0, 8, 7, 6, 5, 4)]
    print_table(Console(file=file, width=80, force_terminal=True, no_color=True), table, drop)
    text = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert max(map(len, text.splitlines())) <= 80
    assert sum(LONG in line for line in text.splitlines()) <= 1
    assert re.findall(r"([0-9])\.12 ± 0\.34", text) == ["2", "3", "4"]
    assert "left out for want of room, columns: quantity 1, quantity 0, quantity 8" in text


def test_a_command_that_does_not_exist_is_suggested_once() -> None:
    done = CliRunner().invoke(app, ["analyse"])
    assert done.output.count("Did you mean") <= 1


def test_a_pipe_has_one_line_per_row() -> None:
    lines = [line for line in shown(80, terminal=False) if line.strip()]
    assert sum(LONG in line for line in lines) == 1
    assert "8.123456" in next(line for line in lines if LONG in line)


def sojourn(*arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments, next_one",
    [
        (("analyze", "three-clusters", "--concurrency", "5"), "sojourn plan three-clusters"),
        (("plan", "three-clusters", "--concurrency", "2"), "sojourn explore three-clusters"),
        (
            ("simulate", "twenty", "--concurrency", "5", "--rounds", "500", "--replicates", "2"),
            "sojourn plan twenty",
        ),
        (("deploy", "init", "app"), "sojourn deploy local app"),
        (("fleet", "estimate", "log.csv", "--out", "f.csv"), "sojourn plan f.csv"),
    ],
)
def test_a_command_ends_with_what_comes_next(arguments, next_one, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"d,{1 + 0.1 * k}\n" for k in range(20))
    (tmp_path / "log.csv").write_text("device,duration\n" + rows)
    _, error = sojourn(*arguments)
    assert error.splitlines()[-1].startswith(f"Next: {next_one}")


def test_symbols_are_said_in_words() -> None:
    known = ("--constants", "default", "--concurrency", "5")
    words = " ".join(sojourn("plan", "three-clusters", *known)[0].split())
    assert "G: the bound on the mean squared gradient norm" in words
    assert "H: the same per time unit" in words
    assert re.search(r"\beta\b", words) is None
    words = " ".join(sojourn("analyze", "three-clusters", *known)[0].split())
    assert "L: smoothness, sigma: gradient noise" in words
    few = ("--concurrency", "5", "--rounds", "500", "--replicates", "2")
    words = " ".join(sojourn("simulate", "three-clusters", *few)[0].split())
    assert "z: how many standard errors" in words


def test_numbers_have_no_colour_and_the_plan_has_one(monkeypatch) -> None:
    from sojourn.cli.output import screen

    assert not screen()._highlight
    assert CHOSEN == "green"


@pytest.mark.parametrize("command", [("simulate",), ("deploy", "local"), ("train",), ("plan",)])
def test_defaults_are_shown(command) -> None:
    text, _ = sojourn(*command, "--help")
    assert "[default: " in text


def test_a_deployment_says_that_it_starts_and_how_long_it_will_take() -> None:
    assert _headline({"phase": "starting Flower"}) == "starting Flower"
    status = {
        "phase": "running",
        "updates": 30,
        "of": 90,
        "elapsed": 15.0,
        "throughput": 2.0,
        "clients": [],
    }
    assert "30/90 updates in 15 s, 2.00/s, about 30 s left" in _headline(status)
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True).print(_picture(status))
    assert "━" in file.getvalue()
    assert "left" not in _headline({**status, "updates": 90})
