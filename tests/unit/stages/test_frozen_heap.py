"""What was there before is not looked at for garbage; what is made meanwhile is."""

import gc
import weakref

from sluicegate.stages.runtime.frozen_heap import frozen_heap


class Node:
    """Can be part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_of_now_is_collected_and_what_was_there_is_left_alone_until_the_end() -> None:
    gc.unfreeze()
    before = Node()
    gone = weakref.ref(before)
    with frozen_heap():
        assert gc.get_freeze_count() > 1000
        made = weakref.ref(Node())
        del before
        gc.collect()
        assert made() is None
        assert gone() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gone() is None
