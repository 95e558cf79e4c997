"""Tables of every command within 80 and 120 columns: names of forty letters, 100,000 clients."""

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.cli.deploy import _picture
from sojourn.cli.train import _show as show_trained
from sojourn.cli.tune import show_confirmed
from sojourn.runs.folder import RunFolder
from tests.report.test_verdict import runs

NAMES = [f"{k} {'a strategy with a name of forty letters, debiased'[:38]}" for k in range(3)]
COPIED = ("Next: ", "Page: ", "written")
"""Lines that are copied whole, however long they are."""
WIDTHS = [80, 120]
PLAIN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def check(text: str, width: int) -> None:
    """No line is too long, no number is cut, and no line ends or begins inside "a ± b"."""
    lines = [line.rstrip() for line in PLAIN.sub("", text).splitlines()]
    assert any(lines)
    long = [line for line in lines if len(line) > width and not line.startswith(COPIED)]
    assert long == []
    assert not any(line.endswith("±") or line.lstrip().startswith("±") for line in lines)
    assert not any("…" in line for line in lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet of 100,000 clients, a log of tasks, and a finished run, with long names throughout."""
    path = tmp_path_factory.mktemp("wide")
    counts, rates = (60_000, 30_000, 10_000), (0.01, 0.1234567, 1.7654321)
    rows = [f'"{n}",{r},{c}' for n, r, c in zip(NAMES, rates, counts, strict=True)]
    (path / "fleet.csv").write_text("\n".join(["name,service_rate,count", *rows]) + "\n")
    tasks = [f'"{NAMES[k % 3]}",{1 + 0.1 * (k % 7)}' for k in range(60)]
    (path / "log.csv").write_text("\n".join(["device,duration", *tasks]) + "\n")
    histories = [
        history
        for k, name in enumerate(NAMES)
        for history in runs(name, [0.03 - 0.005 * k] * 3, [0.9, 0.88 - 0.1 * k, 0.91])
    ]
    run = RunFolder(path / "run")
    run.path.mkdir()
    run.write_history(histories)
    entries = [{"name": name, "time_to": {"0.5": {}, "0.8": {}}} for name in NAMES]
    run.write_summary({"strategies": entries})
    run.experiment_path.write_text("targets = [0.5, 0.8]\n")
    run.ledger.path.unlink(missing_ok=True)
    return path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", "fleet.csv", "--concurrency", "1000"),
        ("plan", "fleet.csv", "--concurrency", "20"),
        ("plan", "fleet.csv", "--concurrency", "5", "--constants", "default"),
        ("simulate", "fleet.csv", "--concurrency", "50", "--rounds", "300", "--replicates", "2"),
        ("fleet", "estimate", "log.csv"),
        ("compare", "run"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_keeps_to_the_width(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], width: int
) -> None:
    monkeypatch.chdir(folder)
    # Rich takes its output for a terminal where FORCE_COLOR is set.
    environment = {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm"}
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env=environment)
    assert done.exit_code == 0, done.output
    check(done.stdout, width)


def terminal(width: int) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=width, force_terminal=True, highlight=False), file


@pytest.mark.parametrize("width", WIDTHS)
def test_train_and_tune_keep_to_the_width(folder: Path, width: int) -> None:
    run = RunFolder(folder / "run").read()
    console, file = terminal(width)
    show_trained(run, console, NAMES[0])
    check(file.getvalue(), width)
    console, file = terminal(width)
    rows = [
        SimpleNamespace(
            name=name,
            learning_rate=0.012345,
            scores=[0.12345, 0.12456, 0.12567],
            without_update=False,
            histories=[history for history in run.histories if history.strategy == name],
        )
        for name in NAMES
    ]
    criterion = SimpleNamespace(
        describe=lambda: "final test loss", text_of=lambda scores: "0.12456 ± 0.00064"
    )
    tuned = SimpleNamespace(
        table=rows,
        pick=rows[0],
        setting=SimpleNamespace(criterion=criterion),
        verdict=SimpleNamespace(groups={"The pick": NAMES[:1], "Worse": NAMES[1:]}),
        halving=SimpleNamespace(compared=190),
        gradients=123_456_789,
        seconds=131.0,
    )
    show_confirmed(tuned, console)
    check(file.getvalue(), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_running_deployment_keeps_to_the_width(width: int) -> None:
    clients = [
        {"name": name, "status": "quarantined", "waiting": 12, "used": 12_345, "refused": 1_234, "seconds": 123.4}
        for name in NAMES
    ]  # fmt: skip
    status = {
        "phase": "running",
        "updates": 99_999,
        "of": 100_000,
        "elapsed": 123_456.0,
        "throughput": 0.81,
        "clients": clients,
    }
    console, file = terminal(width)
    console.print(_picture(status))  # type: ignore[arg-type]
    check(file.getvalue(), width)
