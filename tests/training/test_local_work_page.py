"""The page about local work says what was measured."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_has_the_numbers_of_the_results() -> None:
    page = (ROOT / "docs" / "local-work.md").read_text(encoding="utf-8")
    results = ROOT / "experiments" / "local-work" / "results" / "comparison.csv"
    with results.open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["final_loss"]))
    assert len(rows) == 10
    for row in rows:
        loss, error = float(row["final_loss"]), float(row["final_loss_se"])
        start = (
            f"| {row['strategy']} | {float(row['learning_rate']):g} | {loss:.3f} ± {error:.3f} |"
        )
        assert page.count(start) == 1
    apart = [row["strategy"] for row in rows[1:] if float(row["p_holm"]) < 0.05]
    assert apart == [row["strategy"] for row in rows[3:]], "the first three do not differ"
