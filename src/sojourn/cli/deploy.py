"""``sojourn deploy`` and ``client``: make a Flower app, run it on this machine, run one client."""

import importlib.util
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sojourn.cli import app, run_what_is_named
from sojourn.cli.output import say_next, say_verdict, screen, stop_interrupted
from sojourn.errors import InvalidInput, MissingExtra
from sojourn.runs.folder import RunFolder

if TYPE_CHECKING:
    from sojourn.deployment.settings import Settings
    from sojourn.deployment.status import RunStatus
    from sojourn.fleet import Network

SECONDS_BETWEEN_LINES = 10.0
LOGS = "logs"

deploy = typer.Typer(help="Run a plan on real clients, with Flower.", no_args_is_help=True)
app.add_typer(deploy, name="deploy")


@deploy.callback()
def _trust(context: typer.Context) -> None:
    # To run the code that an app names is what the others are for. `init` copies a strategy's, and has to
    # import it for that.
    if context.invoked_subcommand == "init":
        run_what_is_named(context)


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    strategy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="strategy.toml of `sojourn tune`, or a plan: copied into the app, which runs it.",
        ),
    ] = None,
    problem: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A Python file with the function problem(clients, seed), such as an experiment's: "
            "copied into the app as task.py.",
        ),
    ] = None,
) -> None:
    """Write a small Flower app to edit: the model and the data, and how to train.

    Example: sojourn deploy init my-app --strategy tuned/strategy.toml --problem problem.py
    """
    from sojourn.deployment.app import write_app

    written = write_app(folder, strategy, problem)
    for path in written.files:
        typer.echo(f"wrote {path}")
    if written.installed:
        typer.echo(
            f"The strategy needs {', '.join(written.installed)}, installed here and not copied: install "
            "the same on the server and on every client."
        )
    task = folder / "federated" / "task.py"
    if written.lacks_rate:
        typer.echo(
            f"{strategy} gives no learning rate: set 'learning-rate', such as 0.1, in "
            f"{folder / 'pyproject.toml'}, or use the strategy.toml of `sojourn tune`, which has one."
        )
    if problem is None:
        typer.echo(f"Edit {task}: the model, the data, how to train.")
    else:
        typer.echo(f"In {task} every client makes the samples of all: see README.md for its own.")
    say_next("deploy", "local", folder, *(["--clients", "3"] if strategy is not None else []))


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
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process", help="Clients as threads of one process, without Flower: quick."
        ),
    ] = False,
) -> None:
    """Start Flower on this machine, run the app on it, and stop everything again.

    Example: sojourn deploy local my-app --clients 3 --pause 0,1,4
    """
    from sojourn.deployment.app import app_config, task_folder, unpacked_files
    from sojourn.deployment.local import run_in_process
    from sojourn.deployment.processes import handling
    from sojourn.deployment.settings import read_settings

    if not in_process and importlib.util.find_spec("flwr") is None:
        raise MissingExtra("flwr", extra="deploy")
    results = out or folder.resolve().parent / f"{folder.resolve().name}-run"
    asked = {"clients": clients, "updates": updates}
    config: dict[str, object] = {key: value for key, value in asked.items() if value is not None}
    config |= {"run-folder": str(results.resolve()), "resume": resume, **unpacked_files(folder)}
    config |= {} if clients is None else {"rehearse": True}
    settings = read_settings({**app_config(folder), **config}, task_folder(folder))
    if settings.rehearsed_of is not None:
        typer.secho(_rehearsal_text(settings, settings.rehearsed_of), fg="yellow", err=True)
    _check_results(results, resume)
    pauses = _pauses(pause, settings.clients)
    try:
        # A hang-up or a polite kill ends like Ctrl-C, so that nothing is left running.
        with handling(_interrupt, signal.SIGTERM, signal.SIGHUP), _shown() as show:
            if not in_process:
                _run(folder, results, config, pauses, show)
            elif not run_in_process(folder, settings, pauses, show):
                typer.echo(f"stopped; the checkpoint is in {results}. Go on with --resume.")
                return
    except KeyboardInterrupt:
        options = "".join(f"--{key} {value} " for key, value in asked.items() if value)
        stop_interrupted(
            f"Everything is stopped. Go on with: sojourn deploy local {folder} "
            f"{options}{'--in-process ' if in_process else ''}--pause {pause} --out {results} --resume"
        )
    _say_outcome(results)


@deploy.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a deployment.")],
    target: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write it, such as model.safetensors.")
    ],
    averaged: Annotated[
        bool | None,
        typer.Option(
            "--averaged/--raw",
            help="The average of versions, or the last version.",
            show_default="as evaluated: the average, if the rule keeps one",
        ),
    ] = None,
) -> None:
    """Write the model of the last checkpoint as a state_dict file, while the run goes on or after.

    Example: sojourn deploy export my-app-run model.safetensors
    """
    from sojourn.deployment.export import export_model

    version = export_model(run, target, averaged=averaged)
    typer.echo(f"wrote {target}: version {version} of the model")
    typer.echo(
        "Load it with: model.load_state_dict(safetensors.torch.load_file("
        f"{json.dumps(str(target))}))"
    )


def _rehearsal_text(settings: "Settings", whole: "Network") -> str:
    """What a rehearsal runs of a strategy, and how it differs from the whole, as far as theory says."""
    from sojourn.dispatch.analysis import analyze

    small = settings.strategy.network
    names = small.fleet.names or ()
    text = (
        f"A rehearsal with {small.size} of the strategy's {whole.size} clients "
        f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}), and {small.concurrency} of "
        f"{whole.concurrency} tasks in flight. "
    )
    try:
        few, all_of_them = (
            analyze(network, settings.strategy.policy) for network in (small, whole)
        )
    except InvalidInput:
        return text + "Throughput, staleness and what is learned are those of the small fleet."
    return text + (
        f"At the fleet's speeds theory expects {few.throughput:.3g} updates per time unit where the "
        f"whole makes {all_of_them.throughput:.3g}, a mean staleness of about "
        f"{small.concurrency - 1} updates instead of {whole.concurrency - 1}, and "
        f"{float(few.utilization.max()):.0%} instead of {float(all_of_them.utilization.max()):.0%} of "
        "the time of the busiest client. What is learned is what these clients' data teach."
    )


def _run(
    folder: Path,
    results: Path,
    config: Mapping[str, object],
    pauses: list[float],
    show: Callable[["RunStatus"], None],
) -> None:
    from sojourn.deployment.local import LocalFlower, follow

    RunFolder(results).status_path.unlink(missing_ok=True)
    with LocalFlower(results / LOGS, resident=True) as flower:
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


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _shown() -> Iterator[Callable[["RunStatus"], None]]:
    """A table that is updated on a terminal; elsewhere a line every ten seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield lambda status: live.update(_picture(status))
        return
    said_at, phase = 0.0, ""

    def say(status: "RunStatus") -> None:
        nonlocal said_at, phase
        if status["phase"] != phase or time.monotonic() - said_at > SECONDS_BETWEEN_LINES:
            said_at, phase = time.monotonic(), status["phase"]
            console.print(_headline(status), highlight=False)

    yield say


def _headline(status: "RunStatus") -> str:
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


def _picture(status: "RunStatus") -> Group:
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


def _seconds_left(status: "RunStatus") -> float | None:
    """How long the rest takes at the speed seen so far."""
    if not status["throughput"] or status["updates"] >= status["of"]:
        return None
    return float(status["of"] - status["updates"]) / float(status["throughput"])


def _say_outcome(results: Path) -> None:
    """The verdict, as the page and the live view have it."""
    from sojourn.report.deployment import verdict_on

    say_verdict(verdict_on(RunFolder(results).read()), screen())
    typer.echo(f"written to {results}; its page: sojourn report {shlex.quote(str(results))}")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    no_args_is_help=True,
)
def client(context: typer.Context) -> None:
    """Run one client of a deployment: a Flower SuperNode and a process that stays between tasks.

    Give it the options of flower-supernode; it takes the place of that command. Imports, data and
    model are loaded once, not for every task. It ends with its node.

    Example: sojourn client --superlink HOST:8000 --root-certificates ca.crt --node-config
    'partition-id=0'
    """
    if importlib.util.find_spec("flwr") is None:
        raise MissingExtra("flwr", extra="deploy")
    from sojourn.deployment.flower.resident import start

    sys.exit(start(context.args))
