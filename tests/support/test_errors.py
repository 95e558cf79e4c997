"""Errors come back whole from other processes."""

import inspect
import pickle

import pytest

from sojourn import errors

MADE = {
    errors.UnknownName: lambda: errors.UnknownName("law", "gaus", iter(["gauss", "pareto"])),
    errors.MissingExtra: lambda: errors.MissingExtra("torch", extra="train"),
}
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.SojournError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickling(kind):
    error = MADE.get(kind, lambda: kind("what is wrong"))()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert str(pickle.loads(pickle.dumps(again))) == str(error)
