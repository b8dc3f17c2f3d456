"""Which plan takes the place of which: epochs grow by ones, and what no leader can have written counts for nothing."""

import pytest

from sluicegate.domain.plan import FAR, MAX_TERM, NO_EPOCH, Epoch, follows


@pytest.mark.parametrize(
    ("epoch", "newest", "takes"),
    [
        (Epoch(1, 1), NO_EPOCH, True),
        (Epoch(MAX_TERM, 1), NO_EPOCH, True),  # who has seen nothing cannot know
        (NO_EPOCH, NO_EPOCH, False),
        (Epoch(4, 9), Epoch(4, 8), True),
        (Epoch(4, 8), Epoch(4, 8), False),
        (Epoch(4, 7), Epoch(4, 8), False),
        (Epoch(5, 1), Epoch(4, 8), True),
        (Epoch(3, 99), Epoch(4, 8), False),
        (Epoch(4, 8 + FAR + 1), Epoch(4, 8), False),
        (Epoch(4 + FAR, 1), Epoch(4, 8), True),
        (Epoch(4 + FAR + 1, 1), Epoch(4, 8), False),
        (Epoch(4, 8), Epoch(MAX_TERM, 1), True),  # what was believed for want of better was a stranger's
    ],
)
def test_a_plan_follows_another(epoch: Epoch, newest: Epoch, takes: bool) -> None:
    assert follows(epoch, newest) is takes
