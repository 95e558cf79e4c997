"""The verdict: decided by the histories, in plain words, and the same numbers everywhere."""

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reproduction.pages import reproduction_report as report_of
from sojourn._support.user_modules import Sources
from sojourn.report.outcomes import by_strategy, final_text, time_text
from sojourn.report.verdict import MOST_WORDS, verdict_of
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History


def run(strategy: str, seed: int, speed: float, end: float) -> History:
    """Accuracy rises in a straight line, ``speed`` per time unit, up to ``end``."""
    time = np.linspace(0.0, 100.0, 101)
    accuracy = np.minimum(end, speed * time)
    return History(
        strategy=strategy,
        seed=seed,
        learning_rate=0.1,
        clock="virtual",
        round=np.arange(101),
        time=time,
        test_loss=1.0 - accuracy,
        test_accuracy=accuracy,
        train_loss=np.ones(101),
        staleness=np.ones(101),
        gradients=np.arange(101),
        updates=np.arange(101),
    )


def runs(name: str, speeds: Sequence[float], ends: Sequence[float]) -> list[History]:
    pairs = zip(speeds, ends, strict=True)
    return [run(name, seed, speed, end) for seed, (speed, end) in enumerate(pairs)]


PLAN = runs("plan", [0.020, 0.030, 0.024, 0.027], [0.81, 0.82, 0.81, 0.82])
ROOT = runs("square-root", [0.030, 0.020, 0.027, 0.024], [0.88, 0.89, 0.88, 0.89])


def test_strategies_that_cross_from_seed_to_seed_are_not_significantly_different() -> None:
    verdict = verdict_of([*PLAN, *ROOT], [0.5, 0.8])
    assert verdict.tested == "time to 80%"
    assert verdict.title == "Use plan or square-root"
    assert verdict.because == "plan reaches 80% in 32.8 time units; square-root needs 32.8."
    assert verdict.groups == {
        "The pick, by time to 80%": ("plan",),
        "Not significantly different from it (4 seeds)": ("square-root",),
    }


def test_without_targets_the_final_value_decides() -> None:
    verdict = verdict_of([*PLAN, *ROOT])
    assert verdict.tested == "final test accuracy"
    assert verdict.title == "Use square-root, learning rate 0.1"
    assert verdict.because == "It ends at 88.5% test accuracy; plan at 81.5%."
    assert (verdict.alike, verdict.worse) == ((), ("plan",))


def test_the_verdict_changes_when_the_histories_do() -> None:
    faster = runs("plan", [0.1, 0.1, 0.1, 0.1], [0.95, 0.96, 0.95, 0.96])
    before, after = verdict_of([*PLAN, *ROOT], [0.8]), verdict_of([*faster, *ROOT], [0.8])
    assert after.title == "Use plan, learning rate 0.1"
    assert after.because == "It reaches 80% in 8 time units; square-root needs 32.8."
    assert after.worse == ("square-root",)
    assert after != before


def test_seeds_that_miss_the_target_are_counted_and_not_averaged_over() -> None:
    some = runs("some", [0.03] * 4, [0.9, 0.9, 0.7, 0.7])
    assert time_text(some, 0.8) == "2 of 4 seeds reached it"
    alone = verdict_of(some, [0.8])
    assert alone.title == "Reached 80.0% test accuracy with some"
    assert alone.because == "It ends at 80.0% test accuracy."
    easier = verdict_of([*PLAN, *some], [0.5, 0.8, 0.85])
    assert easier.tested.startswith("time to 80%, or final test accuracy"), (
        "the hardest target that one strategy always reached"
    )
    assert easier.because.endswith("some reached it in 2 of 4 runs.")


def test_a_run_that_diverged_has_no_end() -> None:
    lost = [
        replace(PLAN[0], strategy="lost", diverged_at=50),
        *(replace(r, strategy="lost") for r in PLAN[1:]),
    ]
    assert final_text(lost, lost[0].measure) == "81.7 ± 0.3%"
    verdict = verdict_of([*lost, *ROOT])
    assert verdict.pick == "square-root"
    assert verdict.worse == ("lost",)


def test_a_run_that_diverged_early_is_not_the_first_at_the_target() -> None:
    """Three of four seeds of ``lost`` ended at 2, long before any other came to the target."""
    columns = ("round", "time", "test_loss", "test_accuracy", "train_loss", "staleness")
    early = {n: getattr(PLAN[0], n)[:3] for n in (*columns, "gradients", "updates")}
    lost = [replace(r, strategy="lost", diverged_at=3, **early) for r in PLAN[:3]]
    lost.append(replace(PLAN[3], strategy="lost"))
    verdict = verdict_of([*lost, *ROOT], [0.8])
    assert verdict.tested == "time to 80%"
    assert verdict.pick == "square-root"
    assert verdict.worse == ("lost",)


NEVER = runs("never", [0.02, 0.02], [0.5, 0.75])
SOON = runs("soon", [0.050, 0.049], [0.85, 0.83])


def test_a_target_that_was_not_reached_is_no_time_to_test() -> None:
    """With the end of the run in place of an unknown time, two seeds had p = 0.005."""
    verdict = verdict_of([*SOON, *NEVER], [0.8])
    assert verdict.tested == "time to 80%, or final test accuracy where a run did not reach it"
    assert verdict.title == "Use soon or never"
    assert (verdict.pick, verdict.alike, verdict.worse) == ("soon", ("never",), ())
    assert verdict.because == "soon reaches 80% in 16.5 time units; never does not reach it."


def test_strategies_that_miss_a_target_and_end_alike_are_rarely_called_worse() -> None:
    """Equal strategies, half of whose runs reach the target: about one pair in twenty may differ."""
    random, called = np.random.default_rng(5), 0
    for _ in range(400):
        ends = random.normal(0.8, 0.02, (2, 2))
        pair = [runs(name, [0.05, 0.051], own) for name, own in zip("ab", ends, strict=True)]
        called += bool(verdict_of([*pair[0], *pair[1]], [0.8]).worse)
    assert called <= 28, "two standard errors above a twentieth"


def test_who_ends_better_is_not_worse_for_having_missed_a_target_once() -> None:
    high = runs("high", [0.03] * 4, [0.95, 0.95, 0.96, 0.79])
    low = runs("low", [0.05] * 4, [0.81, 0.81, 0.82, 0.81])
    verdict = verdict_of([*low, *high], [0.8])
    assert (verdict.pick, verdict.alike) == ("low", ("high",))


def test_runs_that_stopped_at_the_target_have_no_end_to_compare() -> None:
    columns = ("round", "time", "test_loss", "test_accuracy", "train_loss", "staleness")
    stopped = []
    for history in FAST:
        rows = int(np.argmax(history.test_accuracy >= 0.8)) + 1
        cut = {n: getattr(history, n)[:rows] for n in (*columns, "gradients", "updates")}
        stopped.append(replace(history, **cut))
    verdict = verdict_of([*stopped, *SLOW], [0.8])
    assert (verdict.tested, verdict.alike) == ("time to 80%", ("slow",))


def test_a_loss_is_not_rounded_to_the_digits_of_an_error_that_is_unknown() -> None:
    ends = np.linspace(2.3, 1.0016, 101)
    alone = replace(FAST[0], test_accuracy=np.full(101, np.nan), test_loss=ends)
    assert final_text([alone], alone.measure) == "1.002"
    assert verdict_of([alone]).title == "Reached a test loss of 1.002 with fast"


def test_without_labels_the_loss_decides() -> None:
    blind = [replace(r, test_accuracy=np.full(101, np.nan)) for r in (*PLAN, *ROOT)]
    verdict = verdict_of(blind)
    assert verdict.title == "Use square-root, learning rate 0.1"
    assert verdict.because == "It ends at a test loss of 0.115; plan at 0.185."


SLOW = runs("slow", [0.01, 0.012, 0.011, 0.009], [0.4, 0.42, 0.41, 0.39])
FAST = runs("fast", [0.1, 0.11, 0.1, 0.11], [0.95, 0.96, 0.95, 0.96])
FLAT = [
    replace(h, test_accuracy=np.full(101, 0.1), test_loss=np.full(101, 2.3)) for h in (*PLAN, *ROOT)
]
OUTCOMES = {
    "clear win": ([*FAST, *SLOW], [0.8], "Use fast, learning rate 0.1"),
    "several alike": (
        [*PLAN, *ROOT, *(replace(h, strategy="third") for h in PLAN)],
        [0.8],
        "Run more seeds: 4 show no significant difference",
    ),
    "nothing learnt": (FLAT, [0.8], "Train longer: no strategy learnt anything"),
    "one seed": ([FAST[0], SLOW[0]], [0.8], "Run more seeds: fast leads after one"),
    "target not reached": (
        [*SLOW, *(replace(h, strategy="other") for h in SLOW)],
        [0.9],
        "Train longer: no strategy reached 90%",
    ),
    "every run diverged": (
        [replace(h, diverged_at=7) for h in (*PLAN, *ROOT)],
        [0.8],
        "Lower the learning rate: every run diverged",
    ),
}
"""Histories, targets that the user set, and the title that they must have."""


@pytest.mark.parametrize("kind", OUTCOMES)
def test_every_kind_of_outcome_has_a_title_that_says_what_to_do(kind: str, tmp_path: Path) -> None:
    histories, targets, title = OUTCOMES[kind]
    verdict = verdict_of(histories, targets, asked=True, folder=tmp_path / "run")
    assert verdict.title == title
    assert len(verdict.title.split()) <= MOST_WORDS
    assert verdict.because.endswith(".")
    assert verdict.because.count(". ") == 0, "one sentence"
    named = [name for names in verdict.groups.values() for name in names]
    assert sorted(named) == sorted(by_strategy(histories)), "every strategy is in one group"
    assert verdict.next_command.startswith("sojourn ")
    for line in verdict.lines:
        assert html.escape(line) in verdict._repr_html_()


def test_a_tuning_is_judged_by_its_own_scores_whatever_the_role() -> None:
    scores = {
        "fast": [0.1, 0.11, 0.1, 0.11],
        "slow": [0.5, 0.52, 0.51, 0.5],
        "far": [0.6, 9, 0.1, 5],
    }
    confirmed = [
        {"name": name, "learning_rate": 0.1, "baseline": name == "far", "scores": own}
        for name, own in scores.items()
    ]
    tuning = {"pick": "fast", "criterion": "final loss", "confirmed": confirmed}
    histories = [*FAST, *SLOW, *(replace(h, strategy="far") for h in SLOW)]
    verdict = verdict_of(histories, [0.8], tuning=tuning)
    assert verdict.tested == "final loss"
    assert (verdict.alike, verdict.worse) == (("far",), ("slow",))
    assert verdict.because == (
        "It reaches 80% in 8 time units; slow does not reach it, far does not reach it."
    )


def test_the_app_of_a_tuning_gets_its_own_problem(tmp_path: Path) -> None:
    scores = {"name": "fast", "learning_rate": 0.1, "baseline": False, "scores": [0.1] * 4}
    tuning = {"pick": "fast", "criterion": "final loss", "confirmed": [scores]}
    folder, code = RunFolder(tmp_path / "tuned"), Sources({"mine.py": "def problem(): ...\n"})
    folder.begin({"problem": "mine:problem"}, extensions=code)
    verdict = verdict_of(FAST, tuning=tuning, folder=folder.path)
    assert verdict.next_command.endswith(f"--problem {tmp_path}/tuned/extensions/mine.py")
    folder.begin({"problem": "mine:other"})  # an app's problem is called so
    again = verdict_of(FAST, tuning=tuning, folder=folder.path)
    assert again.next_command.endswith("strategy.toml")
    strategy = folder.path / "strategy.toml"
    for rule, begins in (("fedbuff", "sojourn deploy"), ("own:Rule", "sojourn --trust deploy")):
        strategy.write_text(f'[strategy]\nrule = {{ name = "{rule}" }}\n')
        verdict = verdict_of(FAST, tuning=tuning, folder=folder.path)
        assert verdict.next_command.startswith(begins)


def numbers_on(page: str, strategies: Sequence[str]) -> dict[str, set[str]]:
    """For every strategy, all texts that a page gives as its final accuracy."""
    plain = html.unescape(page).replace("\N{NO-BREAK SPACE}", " ")
    found: dict[str, set[str]] = {name: set() for name in strategies}
    results = plain[plain.index("<h3>Results</h3>") :]
    ends = plain[plain.index('class="ends"') : plain.index("<h3>Results</h3>")]
    words = re.search(r"Test accuracy at the end, best first: ([^<]*)\.", plain)
    assert words is not None
    for name in strategies:
        row = re.search(rf"<tr><td>{name}</td>.*?<span class=.v.>([^<]*)</span>", results)
        assert row is not None
        found[name].add(row[1])
        end = re.search(rf"<td>{name}</td><td class=\"n\">([^<]*)<", ends)
        assert end is not None
        mean = re.search(rf"(?:^|; ){name} ([0-9.]+)( ± [0-9.]+)?% after", words[1])
        assert mean is not None
        assert end[1] == f"{mean[1]}%", "the end of the curve is the mean of the ends"
        found[name].add(f"{mean[1]}{mean[2]}%")
    return found


def test_every_number_is_the_same_wherever_it_is_shown(run_folder: Path) -> None:
    page = report_of([run_folder]).to_html()
    read = RunFolder(run_folder).read()
    groups = by_strategy(read.histories)
    for name, texts in numbers_on(page, list(groups)).items():
        assert texts == {final_text(groups[name], groups[name][0].measure)}, name
    summary = {entry["name"]: entry for entry in read.summary["strategies"]}
    for name, group in groups.items():
        told = f"{100 * summary[name]['final_accuracy']['mean']:.1f}"
        assert final_text(group, group[0].measure).startswith(told)


def test_the_page_changes_with_its_histories(run_folder: Path) -> None:
    before = report_of([run_folder])
    path = run_folder / "history.jsonl"
    changed = [
        replace(h, test_accuracy=np.minimum(1.0, h.test_accuracy + 0.5 * (h.strategy == "plan")))
        for h in History.read(path)
    ]
    RunFolder(run_folder).write_history(changed)
    after = report_of([run_folder])
    assert (after.title, after.because) != (before.title, before.because)
    assert "plan needs" in after.because and "plan needs" not in before.because


@pytest.mark.parametrize("missing", ["criterion", "race"])
def test_half_an_answer_is_refused(tuned_folder: Path, missing: str) -> None:
    import json

    from sojourn.errors import InvalidFile

    path = tuned_folder / "tune.json"
    values = json.loads(path.read_text())
    del values[missing]
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidFile, match=f"lacks {missing}"):
        report_of([tuned_folder])
