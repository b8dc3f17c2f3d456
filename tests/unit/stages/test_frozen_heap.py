"""What was there before is not looked at for garbage; what is made meanwhile is."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from sluicegate.stages.runtime.frozen_heap import frozen_heap


class Node:
    """Can be part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def thawed() -> Iterator[None]:
    """What the suite has frozen is looked at meanwhile."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_garbage_of_now_is_collected_and_what_was_there_is_left_alone_until_the_end() -> None:
    """The end is that of who froze it first."""
    before = Node()
    gone = weakref.ref(before)
    with frozen_heap():
        assert gc.get_freeze_count() > 1000
        made = weakref.ref(Node())
        del before
        with frozen_heap():
            assert made() is None
        gc.collect()
        assert gone() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gone() is None
