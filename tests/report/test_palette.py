"""Colours that can be seen on both pages and distinguished by everyone, computed."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from sojourn.figures.palette import Ink, inks
from sojourn.figures.svg import DARK, LIGHT

PAGES = {"light": "#ffffff", "dark": "#191d25"}
# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
BLIND = {
    "normal": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
NAMES = ("uniform", "balanced", "square-root", "plan", "one", "two", "three")


def linear(colour: str) -> NDArray[np.float64]:
    rgb = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (first, second))
    return (light[1] + 0.05) / (light[0] + 0.05)


def oklab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    to_lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return to_lab @ np.cbrt(np.maximum(to_lms @ np.clip(rgb, 0, 1), 0))


def drawn(page: str) -> dict[str, str]:
    return {name: getattr(ink, page) for name, ink in inks(NAMES).items()}


@pytest.mark.parametrize("page", ["light", "dark"])
def test_every_ink_is_seen_on_its_page(page: str) -> None:
    for name, colour in drawn(page).items():
        assert contrast(colour, PAGES[page]) >= 3.0, name


def test_no_two_inks_share_dash_and_marker() -> None:
    worn = [(ink.dash, ink.marker) for ink in inks(NAMES).values()]
    assert len(set(worn)) == len(NAMES)
    spare = inks(f"s{k}" for k in range(8)).values()
    assert len({(ink.dash, ink.marker) for ink in spare}) == 8


@pytest.mark.parametrize("eyes", BLIND)
@pytest.mark.parametrize("page", ["light", "dark"])
def test_colours_are_told_apart_by_all_eyes(page: str, eyes: str) -> None:
    """The distance in OKLab; below 0.02 two patches are hardly distinguishable side by side."""
    seen = {name: oklab(BLIND[eyes] @ linear(c)) for name, c in drawn(page).items()}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 0.02, (one, other)


@pytest.mark.parametrize("shades", [LIGHT, DARK])
def test_staleness_is_told_by_lightness_alone(shades: tuple[str, ...]) -> None:
    lightness = [float(oklab(linear(shade))[0]) for shade in shades]
    steps = np.diff(lightness if shades is DARK else lightness[::-1])
    assert steps.min() > 0.05


def test_an_ink_is_a_value() -> None:
    assert Ink("#000000", "#ffffff") == Ink("#000000", "#ffffff", "solid", "circle")
