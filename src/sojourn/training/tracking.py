"""Finished runs in experiment trackers: TensorBoard, MLflow, Weights & Biases, or one of your own."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from sojourn._support.extensions import load_extension
from sojourn.errors import InvalidInput, SojournError, naming_extras
from sojourn.runs.history import History

EXPERIMENT = "sojourn"
"""The experiment that MLflow lists runs under."""

_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


class Tracker(Protocol):
    """What a tracker of your own has: ``--track module:name`` names a class or a function that makes one."""

    def log(self, history: History) -> None:
        """Take one finished run: its strategy, seed, learning rate and rows."""

    def close(self) -> None:
        """Called once, after the last run."""


def make_tracker(text: str) -> Tracker:
    """The tracker that ``tensorboard:DIR``, ``mlflow:URI``, ``wandb:PROJECT`` or ``module:name`` names.

    >>> make_tracker("tensorboard")
    Traceback (most recent call last):
    sojourn.errors.InvalidInput: --track 'tensorboard': write tensorboard:DIR, mlflow:URI, wandb:PROJECT or module:name
    """
    kind, colon, where = text.partition(":")
    if not (colon and where):
        raise InvalidInput(
            f"--track '{text}': write tensorboard:DIR, mlflow:URI, wandb:PROJECT or module:name"
        )
    if kind in BUILT_IN:
        try:
            return BUILT_IN[kind](where)
        except SojournError:
            raise
        except Exception as error:  # whatever another program finds wrong with its argument
            raise InvalidInput(f"--track '{text}' cannot be used: {error}") from error
    made: Any = load_extension(text, "tracker")
    tracker: Any = made() if callable(made) else made
    if not all(callable(getattr(tracker, name, None)) for name in ("log", "close")):
        raise InvalidInput(
            f"--track '{text}': a tracker has the methods log(history) and close(); this is a "
            f"{type(tracker).__name__}"
        )
    own: Tracker = tracker
    return own


def run_name(history: History) -> str:
    """Strategy, seed and learning rate of a run, as a name for files and lists.

    >>> from types import SimpleNamespace as Run
    >>> run_name(Run(strategy="never-queue, adaptive", seed=1, learning_rate=0.1))
    'never-queue-adaptive_seed-1_rate-0.1'
    """
    strategy = re.sub(r"[^\w.-]+", "-", history.strategy)
    return f"{strategy}_seed-{history.seed}_rate-{history.learning_rate!r}"


def rows_of(history: History) -> Iterator[tuple[int, dict[str, float]]]:
    """The round of every row, and its finite numbers by name; ``time`` is the run's clock."""
    columns = {
        "time": history.time,
        "test_loss": history.test_loss,
        "test_accuracy": history.test_accuracy,
        "train_loss": history.train_loss,
        "staleness": history.staleness,
        "updates": history.updates,
        **history.metrics,
    }
    for place, done in enumerate(history.round.tolist()):
        row = {name: float(values[place]) for name, values in columns.items()}
        yield done, {name: value for name, value in row.items() if math.isfinite(value)}


def parameters_of(history: History) -> dict[str, object]:
    """What a run was made with."""
    return {
        "strategy": history.strategy,
        "seed": history.seed,
        "learning_rate": history.learning_rate,
        "diverged_at": history.diverged_at,
    }


class TensorBoard:
    """Event files in a folder, one subfolder per run: ``tensorboard --logdir DIR``."""

    def __init__(self, folder: str) -> None:
        with naming_extras():
            from torch.utils.tensorboard import SummaryWriter
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._folder, self._writer = folder, SummaryWriter

    def log(self, history: History) -> None:
        """One event file, a scalar per number, by round."""
        name = run_name(history)
        with self._writer(f"{self._folder}/{name}") as writer:
            writer.add_text("parameters", repr(parameters_of(history)))
            for done, row in rows_of(history):
                for column, value in row.items():
                    writer.add_scalar(column, value, done)

    def close(self) -> None:
        """Files are closed with every run."""


class MLflow:
    """Runs on a tracking server, or in a folder or database that MLflow opens by its URI."""

    def __init__(self, uri: str) -> None:
        with naming_extras():
            from mlflow.tracking import MlflowClient
        self._client = MlflowClient(tracking_uri=uri)
        given = os.environ.get(_RETRIES)
        os.environ.setdefault(_RETRIES, "1")  # MLflow's own seven take four minutes
        try:
            known = self._client.get_experiment_by_name(EXPERIMENT)
        finally:
            if given is None:
                del os.environ[_RETRIES]
        self._experiment = (
            self._client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
        )

    def log(self, history: History) -> None:
        """One run, with its parameters and a metric per number, by round."""
        run = self._client.create_run(self._experiment, run_name=run_name(history)).info.run_id
        for name, value in parameters_of(history).items():
            self._client.log_param(run, name, value)
        for done, row in rows_of(history):
            for name, value in row.items():
                self._client.log_metric(run, name, value, step=done)
        self._client.set_terminated(run)

    def close(self) -> None:
        """Every run is ended when it is logged."""


class WandB:
    """Runs of a project of Weights & Biases; ``WANDB_MODE=offline`` keeps them on this machine."""

    def __init__(self, project: str) -> None:
        with naming_extras():
            import wandb
        self._wandb: Any = wandb
        self._project = project

    def log(self, history: History) -> None:
        """One run, with its parameters and a row per evaluation, by round."""
        run = self._wandb.init(
            project=self._project,
            name=run_name(history),
            config=parameters_of(history),
            settings=self._wandb.Settings(console="off"),
        )
        for done, row in rows_of(history):
            run.log(row, step=done)
        run.finish()

    def close(self) -> None:
        """Every run is ended when it is logged."""


BUILT_IN: Mapping[str, Callable[[str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
