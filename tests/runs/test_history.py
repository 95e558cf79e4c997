"""Histories: metrics, their file, and what a wrong file says."""

import json
import math

import numpy as np
import pandas
import pytest

from sojourn.errors import InvalidFile, InvalidInput
from sojourn.runs.history import History


def history(**changes):
    columns = {
        "round": [0, 10, 20],
        "time": [0.0, 1.0, 3.0],
        "test_loss": [2.3, 1.0, 0.5],
        "test_accuracy": [0.1, 0.6, 0.8],
        "train_loss": [math.nan, 1.5, 0.7],
        "staleness": [math.nan, 3.5, 4.0],
        "gradients": [0, 10, 20],
        "updates": [0, 10, 19],
    }
    labels = {"strategy": "uniform", "seed": 1, "learning_rate": 0.1, "clock": "virtual"}
    return History(**{**labels, **columns, **changes})


def same(first, second):
    records = zip(first.to_records(), second.to_records(), strict=True)
    return all(
        key in b and (a[key] == b[key] or (a[key] != a[key] and b[key] != b[key]))
        for a, b in records
        for key in a
    )


def test_a_history_is_told_in_one_line():
    start = "History(uniform, seed 1, learning rate 0.1: "
    assert repr(history()) == f"{start}3 rows to round 20, time 3, test accuracy 80.0%)"
    lost = history(test_accuracy=[math.nan] * 3, clock="real", diverged_at=25)
    assert repr(lost).endswith("time 3 s, test loss 0.5, diverged in round 25)")


def test_metrics_by_hand():
    run = history()
    assert run.final_accuracy == 0.8
    assert run.mean_accuracy == pytest.approx((0.35 * 1 + 0.7 * 2) / 3)
    assert run.time_to(0.6) == 1.0
    assert run.time_to(0.61) == 3.0
    assert math.isnan(run.time_to(0.9))
    assert run.rows == 3


def test_an_average_along_no_length_is_the_last_value():
    """A run of one row, or whose rows all have the same time, has no area to average over."""
    assert history(time=[2.0, 2.0, 2.0]).average("accuracy") == 0.8
    row = history().to_records()[-1]
    names = ("round", "time", "test_loss", "test_accuracy", "train_loss", "staleness", "gradients")
    one_row = {name: [row[name]] for name in (*names, "updates")}
    assert history(**one_row).average("loss") == 0.5
    assert history().average("loss", along="round") == pytest.approx((1.65 + 0.75) / 2)


def test_written_and_read_back(tmp_path):
    path = tmp_path / "history.jsonl"
    runs = [history(), history(seed=2, diverged_at=25, test_loss=[2.3, 1.0, math.inf])]
    History.write(path, runs)
    first, second = History.read(path)
    assert same(first, runs[0])
    assert (second.seed, second.diverged_at) == (2, 25)
    assert math.isnan(second.test_loss[-1])
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


def test_pandas_reads_the_file_and_the_value_alike(tmp_path):
    path = tmp_path / "history.jsonl"
    History.write(path, [history()])
    from_file = pandas.read_json(path, lines=True, precise_float=True)
    pandas.testing.assert_frame_equal(
        from_file, history().to_pandas(), check_dtype=False, check_exact=True
    )


def test_columns_are_read_only_and_of_one_length():
    run = history()
    with pytest.raises(ValueError, match="read-only"):
        run.time[0] = 1.0
    assert run.round.dtype == np.int64
    with pytest.raises(InvalidInput, match="updates has 1"):
        history(updates=[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1: not valid JSON"),
        ("[1]", "line 1: a row must be a JSON object"),
        ('{"strategy": "uniform"}', "there is no 'seed'"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, words):
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=words):
        History.read(path)
    with pytest.raises(InvalidFile, match="cannot be read"):
        History.read(tmp_path / "absent.jsonl")


def test_a_row_with_text_for_a_number_is_refused(tmp_path):
    path = tmp_path / "history.jsonl"
    History.write(path, [history()])
    path.write_text(path.read_text().replace("0.8", '"high"'))
    with pytest.raises(InvalidFile, match="line 3: test_accuracy must be a number"):
        History.read(path)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("round", "NaN", "a whole number"),
        ("round", "1e3", "a whole number"),
        ("updates", "9223372036854775808", "a whole number"),
        ("seed", "[]", "a whole number"),
        ("strategy", "{}", "text"),
        ("learning_rate", "null", "a number"),
        ("time", "1" + "0" * 400, "a number or null"),
        ("diverged_at", '"x"', "a whole number or null"),
    ],
)
def test_a_row_of_another_kind_is_refused(tmp_path, key, value, what):
    path = tmp_path / "history.jsonl"
    History.write(path, [history()])
    row = json.loads(path.read_text().splitlines()[0])
    others = "".join(f', "{k}": {json.dumps(v)}' for k, v in row.items() if k != key)
    path.write_text(f'{{"{key}": {value}{others}}}\n')
    with pytest.raises(InvalidFile, match=f"line 1: {key} must be {what}; it is "):
        History.read(path)
