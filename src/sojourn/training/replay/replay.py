"""Training in virtual time: a schedule replayed on a problem under a rule, or several runs at once."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from numpy.typing import ArrayLike

from sojourn._support.progress import Advance, progress_bar
from sojourn._support.provenance import provenance
from sojourn.rules import Rule, rule_to_table
from sojourn.runs.history import History
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.checkpoint import Checkpoint, CheckpointFile, digest
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule


def replay(
    schedule: "Schedule",
    problem: Problem,
    rule: Rule,
    *,
    learning_rate: float,
    seed: int,
    evaluate_every: int | None = None,
    evaluate_at: ArrayLike | None = None,
    refine: bool = False,
    stop_at: float | None = None,
    client_weights: ArrayLike | None = None,
    batched: bool | None = None,
    strategy: str | None = None,
    progress: bool | Advance = False,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
) -> History:
    r"""Learn as the schedule says: who finishes when, and which weights each task was sent with.

    At completion t the client's stochastic gradient :math:`g_{C_t}(w_{I_t})` (or its locally
    trained model) is computed at the weights its task was sent with, and ``rule`` makes the next
    weights of it. ``seed`` chooses the batches, which depend on ``(seed, client, ordinal)`` alone.

    ``evaluate_every`` is the number of rounds between rows; by default, as `evaluation_spacing`
    says. ``evaluate_at`` gives the times of the rows instead, so that strategies of different
    throughput are seen at the same times. With ``refine`` there are rows between these wherever the
    primary measure jumps to a new best (see `RefinedEvaluations`), so that the time to a target
    hardly depends on where rows were asked for. ``stop_at`` ends the run at the first row that reaches this value
    of the primary measure. ``client_weights`` say how much every client's loss counts,
    on any scale, such as ``problem.train_sizes``; by default as the fleet's ``weight`` says, and without
    one all count the same.

    ``batched`` computes independent gradients together (``True``), one by one (``False``), or
    whichever is faster on the first runs (``None``): the same up to rounding, and the choice is
    noted in the provenance. ``progress`` shows a bar on a terminal, or is called with the rounds
    done and in all. ``checkpoint`` is a file to save the run in, and to resume from if it exists: a
    run that was killed and resumed gives the same history to the bit, on the same machine with the
    same number of threads.

    A loss that is not finite ends the run: ``diverged_at`` says in which round.
    Cost: one gradient per task; at most m + 1 versions of the weights are alive.
    Paper: Algorithms 1 and 2.
    """
    run = Replay(
        schedule,
        problem,
        rule,
        learning_rate=learning_rate,
        seed=seed,
        client_weights=client_weights,
        evaluate_every=evaluate_every,
        evaluate_at=evaluate_at,
        refine=refine,
        stop_at=stop_at,
    )
    name = strategy or rule.name
    bar = progress_bar(name) if progress is True else nullcontext(progress or None)
    with bar as advance:
        histories = replay_runs(
            [run], [name], batched=batched, progress=advance, checkpoint=checkpoint
        )
    return histories[0]


def replay_runs(
    runs: Sequence[Replay],
    strategies: Sequence[str],
    *,
    batched: bool | None,
    progress: Advance | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
) -> list[History]:
    """The history of each of ``runs``, computed together as `Stack` does; arguments as in `replay`.

    ``strategies`` are their names. ``checkpoint`` saves all runs in one file, so that they resume
    from the same moment.
    """
    stack = Stack(runs)
    file = _checkpoint_file(checkpoint, runs, batched)
    positions = file.read() if file else []
    positions = positions or [run.beginning(batched) for run in runs]
    stack.run(positions, batched=positions[0].batched, file=file, advance=progress)
    return [
        run.history(position, name, _provenance(run, bool(position.batched)))
        for run, position, name in zip(runs, positions, strategies, strict=True)
    ]


def _provenance(run: Replay, batched: bool) -> dict[str, object]:
    """What a history says about how it was made."""
    schedule = run.schedule
    return provenance(
        rule=rule_to_table(run.rule),
        learning_rate=run.learning_rate,
        seed=run.seed,
        rounds=schedule.rounds,
        concurrency=schedule.network.concurrency,
        law=schedule.scenario.law_text,
        policy=schedule.scenario.policy.name,
        start=schedule.scenario.start_name,
        schedule_seed=str(schedule.seed),
        work=schedule.scenario.work,
        batch_size=run.problem.batch_size,
        evaluate_every=run.spacing,
        threads=torch.get_num_threads(),
        batched=batched,
    )


def _checkpoint_file(
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    runs: Sequence[Replay],
    batched: bool | None,
) -> CheckpointFile | None:
    if checkpoint is None:
        return None
    settings = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    identity = {**runs[0].identity(), "batched": digest(batched)}
    rates = [run.learning_rate for run in runs]
    if len(rates) > 1:
        identity["learning rate"] = digest(rates)
    return CheckpointFile(settings, identity, rates)
