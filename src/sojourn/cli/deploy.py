"""``sojourn deploy``: make a Flower app, and run it on this machine."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sojourn.cli import app
from sojourn.cli.inputs import say_next
from sojourn.errors import InvalidInput, MissingExtra

INTERRUPTED = 130
SECONDS_BETWEEN_LINES = 10.0
LOGS = "logs"

deploy = typer.Typer(help="Run a plan on real clients, with Flower.", no_args_is_help=True)
app.add_typer(deploy, name="deploy")


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Write a small Flower app to edit: the model and the data, and how to train.

    Example: sojourn deploy init my-app
    """
    from sojourn.deploy.initialise import write_app

    for path in write_app(folder):
        typer.echo(f"wrote {path}")
    typer.echo(f"Edit {folder / 'federated' / 'task.py'}: the model, the data, how to train.")
    say_next("deploy", "local", folder)


@deploy.command()
def local(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An app of `sojourn deploy init`.")],
    clients: Annotated[
        int | None, typer.Option(help="Clients to start.", show_default="as pyproject.toml says")
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates to apply.", show_default="as pyproject.toml says")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="DIR-run")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the folder's checkpoint, if it has one yet."),
    ] = False,
    pause: Annotated[
        str, typer.Option(help="Seconds that each client sleeps in every task, such as 0,1,4.")
    ] = "0",
) -> None:
    """Start Flower on this machine, run the app on it, and stop everything again.

    Example: sojourn deploy local my-app --clients 3 --pause 0,1,4
    """
    import importlib.util

    from sojourn.deploy.local import app_config, task_folder
    from sojourn.deploy.settings import read_settings

    if importlib.util.find_spec("flwr") is None:
        raise MissingExtra("flwr", extra="deploy")
    asked = {"clients": clients, "updates": updates}
    config: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    settings = read_settings({**app_config(folder), **config}, task_folder(folder))
    results = out or folder.resolve().parent / f"{folder.resolve().name}-run"
    _check_results(results, resume)
    config |= {"run-folder": str(results.resolve()), "resume": resume}
    pauses = _pauses(pause, settings.clients)
    try:
        with _ending_on_signals(), _shown() as show:
            _run(folder, results, config, pauses, show)
    except KeyboardInterrupt:
        options = "".join(f"--{key} {value} " for key, value in asked.items() if value)
        typer.secho(
            f"interrupted; everything is stopped. Go on with: sojourn deploy local {folder} "
            f"{options}--pause {pause} --out {results} --resume",
            fg="yellow",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    _say_outcome(results)


def _run(
    folder: Path,
    results: Path,
    config: Mapping[str, Any],
    pauses: list[float],
    show: Callable[[dict[str, Any]], None],
) -> None:
    from sojourn.deploy.local import LocalFlower, follow
    from sojourn.runfolder import RunFolder

    RunFolder(results).status_path.unlink(missing_ok=True)
    with LocalFlower(results / LOGS) as flower:
        show({"phase": f"starting Flower: the SuperLink and {len(pauses)} clients, some seconds"})
        flower.start_superlink()
        for client, seconds in enumerate(pauses):
            flower.start_supernode(client, pause=seconds)
        show({"phase": "submitting the app"})
        run = flower.run(folder, config)
        follow(flower, run, results, show)


def _check_results(results: Path, resume: bool) -> None:
    if resume:
        if not (results / "checkpoint.npz").exists() and not (results / LOGS).is_dir():
            raise InvalidInput(f"'{results}' holds no checkpoint to resume from")
    elif results.exists() and (not results.is_dir() or any(results.iterdir())):
        raise InvalidInput(
            f"'{results}' exists and is not empty. Give another --out, or --resume to go on with "
            "what is there."
        )


def _pauses(text: str, clients: int) -> list[float]:
    try:
        seconds = [float(part) for part in text.split(",")]
    except ValueError:
        seconds = []
    if not seconds or any(not 0 <= value < float("inf") for value in seconds):
        raise InvalidInput(f"--pause must be seconds, such as 0,1,4; it is '{text}'")
    if len(seconds) not in (1, clients):
        raise InvalidInput(f"--pause must have one value, or {clients}; it has {len(seconds)}")
    return seconds if len(seconds) == clients else seconds * clients


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """A hang-up or a polite kill ends like Ctrl-C, so that nothing is left running."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A table that is kept up to date on a terminal; a line now and then elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield lambda status: live.update(_picture(status))
        return
    said_at, phase = 0.0, ""

    def say(status: dict[str, Any]) -> None:
        nonlocal said_at, phase
        if status["phase"] != phase or time.monotonic() - said_at > SECONDS_BETWEEN_LINES:
            said_at, phase = time.monotonic(), status["phase"]
            console.print(_headline(status), highlight=False)

    yield say


def _headline(status: Mapping[str, Any]) -> str:
    words = [status["phase"]]
    if "updates" in status:
        words.append(f"{status['updates']}/{status['of']} updates in {status['elapsed']:.0f} s")
        words.append(f"{status['throughput']:.2f}/s")
        if (left := _seconds_left(status)) is not None:
            words.append(f"about {left:.0f} s left")
        alive = sum(client["status"] == "alive" for client in status["clients"])
        words.append(f"{alive} of {len(status['clients'])} clients alive")
    if status.get("staleness") is not None:
        words.append(f"staleness {status['staleness']:.1f}")
    if status.get("accuracy") is not None:
        words.append(f"accuracy {status['accuracy']:.3f}")
    elif status.get("loss") is not None:
        words.append(f"loss {status['loss']:.4g}")
    words += [f"{name} {value:.4g}" for name, value in status.get("metrics", {}).items() if value]
    words += [f"{name} has ended" for name in status.get("ended", [])]
    return ", ".join(words)


def _picture(status: Mapping[str, Any]) -> Group:
    table = Table("client", "status", "tasks", "updates", "refused", "seconds per task")
    for client in status.get("clients", []):
        seconds = client["seconds"]
        table.add_row(
            client["name"],
            Text(client["status"], style="green" if client["status"] == "alive" else "red"),
            str(client["waiting"]),
            str(client["used"]),
            str(client["refused"]),
            "" if seconds is None else f"{seconds:.1f}",
        )
    parts: list[RenderableType] = [Text(_headline(status))]
    if "updates" in status:
        parts.append(ProgressBar(total=status["of"], completed=status["updates"], width=60))
    return Group(*parts, *([table] if table.rows else []))


def _seconds_left(status: Mapping[str, Any]) -> float | None:
    """How long the rest takes at the speed seen so far."""
    if not status["throughput"] or status["updates"] >= status["of"]:
        return None
    return float(status["of"] - status["updates"]) / float(status["throughput"])


def _say_outcome(results: Path) -> None:
    from sojourn.runfolder import RunFolder

    for history in RunFolder(results).histories:
        typer.echo(
            f"{history.strategy}: {history.measure.name} {history.final:.3f} after "
            f"{history.round[-1]} updates, {history.time[-1]:.0f} s of {history.clock} time"
        )
    say_next("report", results)
