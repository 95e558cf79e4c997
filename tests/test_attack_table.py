"""The table of attacks in docs/security.md is what benchmarks/attacks.py measured."""

import importlib.util
import sys
from functools import cache
from types import ModuleType

from tests.commands import ROOT


@cache
def attacks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attacks", ROOT / "benchmarks" / "attacks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attacks"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_runs() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert attacks().tables(list(attacks().read().values())) in page


def test_an_attack_that_was_won_by_answering_slowly_is_not() -> None:
    """Two of ten under never-queue: 85 % before those who stand out went into quarantine."""
    run = attacks().Run("slow liar", "default", 10, "never-queue", "equal", 0)
    found = attacks().play(run)
    assert found.accuracy > 0.94
    assert (found.quarantined_hostile, found.quarantined_honest) == (2, 0)


def test_a_fifth_of_a_hundred_that_colludes_is_found() -> None:
    """Accuracy 25 % and nobody in quarantine before a group that stands apart was left out of the median."""
    run = attacks().Run("null space, guessed key", "default", 100, "routed", "equal", 0)
    found = attacks().play(run)
    assert found.accuracy > 0.9
    assert found.quarantined_hostile > 10
    assert found.quarantined_honest == 0
