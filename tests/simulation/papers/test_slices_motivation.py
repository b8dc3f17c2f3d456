"""The published motivation (PROTEAN, Fig. 2), exactly: bursts of four and of six on one GPU."""

import pytest

from reproduce.protean.slices.motivation import figure_2

EXPECTED = {"MPS only": 0.0, "MPS + MIG": 0.5, "smart MPS + MIG": 1.0, "no sharing": 0.5}


@pytest.mark.parametrize("way", EXPECTED)
def test_figure_2b(way: str) -> None:
    assert figure_2(way)[1] == EXPECTED[way]


@pytest.mark.parametrize(
    ("way", "misses"),
    [
        ("MPS only", False),
        ("MPS + MIG", False),
        ("smart MPS + MIG", False),
        ("no sharing", True),
        ("MIG only", True),
    ],
)
def test_figure_2a(way: str, misses: bool) -> None:
    assert (figure_2(way)[0] < 0.99) is misses
