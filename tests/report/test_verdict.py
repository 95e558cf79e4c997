"""The sentence that opens a page: decided by the histories, and the same numbers everywhere."""

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sojourn.history import History
from sojourn.report.outcomes import by_strategy, final_text, time_text
from sojourn.report.verdict import verdict_of
from sojourn.reproduce.pages import report_of
from sojourn.runfolder import RunFolder


def run(strategy: str, seed: int, speed: float, end: float) -> History:
    """Accuracy rises in a straight line, ``speed`` per unit of time, up to ``end``."""
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


def test_strategies_that_cross_from_seed_to_seed_tie() -> None:
    verdict = verdict_of([*PLAN, *ROOT], [0.5, 0.8])
    first, second = (time_text(group, 0.8) for group in (PLAN, ROOT))
    assert verdict.sentence == (
        f"plan and square-root tie to 80% ({first}, {second}); "
        "square-root ends highest (88.5 ± 0.3%), 7.0 ± 0.0 points above plan."
    )
    assert verdict.headline == "square-root ends highest; plan and square-root tie to 80%"
    assert [tile.value for tile in verdict.tiles] == ["square-root", first, "88.5 ± 0.3%", "4"]


def test_the_verdict_changes_when_the_histories_do() -> None:
    faster = runs("plan", [0.1, 0.1, 0.1, 0.1], [0.95, 0.96, 0.95, 0.96])
    before, after = verdict_of([*PLAN, *ROOT], [0.8]), verdict_of([*faster, *ROOT], [0.8])
    assert after.headline == "plan is first to 80% and ends highest"
    assert after.sentence.startswith("plan reaches 80% first (8.0 ± 0.0; square-root: ")
    assert after.tiles != before.tiles


def test_seeds_that_miss_the_target_are_told_and_not_averaged_over() -> None:
    some = runs("some", [0.03] * 4, [0.9, 0.9, 0.7, 0.7])
    assert time_text(some, 0.8) == "2 of 4 seeds reached it"
    alone = verdict_of(some, [0.8]).sentence
    assert alone == "some ends at 80.0 ± 5.8% test accuracy; 80%: 2 of 4 seeds reached it."
    never = verdict_of([*some, *runs("never", [0.01] * 4, [0.3] * 4)], [0.8]).sentence
    assert never.startswith(
        "no strategy reached 80% with every seed: with some 2 of 4 seeds reached it; "
    )
    easier = verdict_of([*PLAN, *some], [0.5, 0.8, 0.85]).sentence
    assert "80%" in easier.split(";")[0], "the hardest target that one strategy reached for sure"


def test_a_run_that_diverged_has_no_end() -> None:
    lost = [
        replace(PLAN[0], strategy="lost", diverged_at=50),
        *(replace(r, strategy="lost") for r in PLAN[1:]),
    ]
    assert final_text(lost, lost[0].measure) == "81.7 ± 0.3%"
    verdict = verdict_of([*lost, *ROOT])
    assert verdict.headline == "square-root ends highest"
    assert verdict.tiles[-1].label == "seeds, each for 2 strategies; 1 runs diverged"


def test_one_seed_decides_nothing() -> None:
    verdict = verdict_of([PLAN[0], ROOT[0]], [0.8])
    assert verdict.headline == "square-root is first to 80% and ends highest, with one seed"
    assert verdict.sentence.endswith("With one seed, nothing of this is certain.")


def test_without_labels_the_loss_decides() -> None:
    blind = [replace(r, test_accuracy=np.full(101, np.nan)) for r in (*PLAN, *ROOT)]
    verdict = verdict_of(blind)
    assert verdict.headline == "square-root ends lowest"
    assert "below plan" in verdict.sentence


def numbers_on(page: str, strategies: Sequence[str]) -> dict[str, set[str]]:
    """For every strategy, all texts that a page gives as its final accuracy."""
    plain = html.unescape(page)
    found: dict[str, set[str]] = {name: set() for name in strategies}
    results = plain[plain.index("<h3>Results</h3>") :]
    ends = plain[plain.index('class="ends"') : plain.index("<h3>Results</h3>")]
    words = re.search(r"Test accuracy at the end, best first: ([^<]*)\.", plain)
    assert words is not None
    for name in strategies:
        row = re.search(rf"<tr><td>{name}</td>(.*?)</tr>", results)
        assert row is not None
        found[name].add(re.findall(r">([^<]*)</td>", row[1])[1])
        end = re.search(rf"<td>{name}</td><td class=\"n\">([^<]*)<", ends)
        assert end is not None
        mean = re.search(rf"(?:^|; ){name} ([0-9.]+)( ± [0-9.]+)?% after", words[1])
        assert mean is not None
        assert end[1] == f"{mean[1]}%", "the end of the curve is the mean of the ends"
        found[name].add(f"{mean[1]}{mean[2]}%")
        told = re.findall(rf"{name} ends highest \(([^;)]*)\)", plain)
        tiles = re.findall(rf"<dt>final test accuracy, {name}</dt><dd>([^<]*)<", plain)
        found[name].update([*told, *tiles])
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
        replace(h, test_accuracy=np.minimum(1.0, h.test_accuracy + 0.2 * (h.strategy == "plan")))
        for h in History.read(path)
    ]
    History.write(path, changed)
    after = report_of([run_folder])
    assert after.title != before.title
    assert "plan" in after.title
    assert after.sections[0].tiles != before.sections[0].tiles


@pytest.mark.parametrize("missing", ["sentence", "race"])
def test_half_an_answer_is_refused(tuned_folder: Path, missing: str) -> None:
    import json

    from sojourn.errors import InvalidFile

    path = tuned_folder / "tune.json"
    values = json.loads(path.read_text())
    del values[missing]
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidFile, match=f"lacks {missing}"):
        report_of([tuned_folder])
