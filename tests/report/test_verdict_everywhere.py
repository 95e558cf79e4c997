"""One verdict, word for word: in the terminal, on the page, in the live view and in a notebook."""

import html
import io
import json
import re
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from sojourn.cli.output import say_verdict
from sojourn.cli.plan import show
from sojourn.dispatch import NeverQueue, Routed
from sojourn.fleet import built_in_fleet
from sojourn.live.watcher import Watcher
from sojourn.planning import plan
from sojourn.planning.objectives import NoiseRate
from sojourn.report.deployment import verdict_on
from sojourn.report.plan import plan_report, plan_verdict
from sojourn.report.runs import report_of
from sojourn.report.verdict import Verdict, run_verdict
from sojourn.runs.folder import RunFolder
from tests.report.test_verdict import OUTCOMES

LONG = "never-queue with a name of forty letters"


@pytest.fixture(params=OUTCOMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A finished run of every kind of outcome."""
    histories, targets, _ = OUTCOMES[request.param]
    path = tmp_path / "run"
    path.mkdir()
    run = RunFolder(path)
    run.write_history(histories)
    names = list(dict.fromkeys(history.strategy for history in histories))
    times = {f"{target:g}": {} for target in targets}
    run.write_summary({"strategies": [{"name": name, "time_to": times} for name in names]})
    run.experiment_path.write_text(tomli_w.dumps({"targets": targets}), encoding="utf-8")
    run.ledger.path.unlink(missing_ok=True)  # made by hand: no digests to keep
    return path


def words(text: str) -> str:
    return " ".join(html.unescape(text).split())


def on_terminal(verdict: Verdict, width: int) -> str:
    file = io.StringIO()
    say_verdict(verdict, Console(file=file, width=width, force_terminal=True, no_color=True))
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


def test_every_surface_says_the_same_words(folder: Path) -> None:
    verdict = run_verdict(RunFolder(folder).read())
    lines = [words(line) for line in verdict.lines]
    for width in (80, 120):
        assert words(on_terminal(verdict, width)) == " ".join(lines)
    notebook = [
        words(line) for line in re.findall(r"<p>(?:<b>)?(.*?)(?:</b>)?</p>", verdict._repr_html_())
    ]
    assert notebook == lines
    live = Watcher(folder).look()
    assert live["state"] == "finished"
    groups = [f"{heading}: {'; '.join(names)}" for heading, names in live["groups"]]
    assert [live["title"], live["text"], *groups, f"Next: {live['command']}"] == verdict.lines
    page = report_of([folder]).to_html()
    shown = page[page.index("<header") : page.index("</header>")]
    for part in (verdict.title, verdict.because, verdict.next_command):
        assert part in words(re.sub(r"<[^>]*>", " ", shown))
    headings = [words(heading) for heading in re.findall(r'scope="rowgroup">([^<]*)<', page)]
    assert headings == list(verdict.groups)


def header(page: str) -> str:
    """What a page begins with."""
    return words(re.sub(r"<[^>]*>", " ", page[page.index("<header") : page.index("</header>")]))


def test_a_deployment_has_the_same_words_everywhere(deployed_folder: Path) -> None:
    verdict = verdict_on(RunFolder(deployed_folder).read())
    assert verdict.title == "Export the model: test accuracy 86.0%"
    assert verdict.because.startswith("60 updates from 30 clients in ")
    assert verdict.because.endswith("; of 90 tasks 2 refused, 1 late.")
    live = Watcher(deployed_folder).look()
    assert [live["title"], live["text"], f"Next: {live['command']}"] == verdict.lines
    assert words(on_terminal(verdict, 80)) == " ".join(verdict.lines)
    shown = header(report_of([deployed_folder]).to_html())
    for part in (verdict.title, verdict.because, verdict.next_command):
        assert part in shown


def test_a_plan_has_the_same_words_on_its_page_and_in_the_terminal() -> None:
    best = plan(built_in_fleet("three-clusters"), NoiseRate(), concurrency=6)
    for policy in (NeverQueue(), Routed()):
        verdict = plan_verdict(best, policy=policy)
        file = io.StringIO()
        show(best, policy, Console(file=file, width=80))
        assert words(file.getvalue()).startswith(f"{verdict.title} {verdict.because}")
    shown = header(plan_report(best, policy=policy).to_html())
    assert verdict.title in shown and verdict.because in shown


@pytest.mark.parametrize("width", [80, 120])
def test_lines_end_between_words_and_not_inside_a_number(width: int) -> None:
    because = f"It ends at 0.1178 ± 0.0065; {LONG} at 0.1878 ± 0.0101, " + ", ".join(
        f"“{LONG} {k}” at 2.308 ± 0.029" for k in range(3)
    )
    verdict = Verdict("Use it", because, "final loss", 3, LONG, alike=(LONG + " 2", LONG + " 3"))
    lines = on_terminal(verdict, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line.rstrip().endswith("±") or line.startswith("±") for line in lines)
    assert sum(len(re.findall(r"[0-9.]+ ± [0-9.]+", line)) for line in lines) == 5


def test_the_folder_of_a_tuning_keeps_the_words(tuned_folder: Path) -> None:
    verdict = run_verdict(RunFolder(tuned_folder).read())
    assert verdict.tested == json.loads((tuned_folder / "tune.json").read_text())["criterion"]
    assert report_of([tuned_folder]).title == verdict.title
    assert Watcher(tuned_folder).look()["title"] == verdict.title
