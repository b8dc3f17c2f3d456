"""What a process holds from its start to its end, kept out of garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """What is there now is not looked at by the cyclic collector meanwhile: modules, models, catalogues.

    A full collection stands still for as long as it takes to visit all there is: a quarter of a second where a process
    has its libraries loaded, in the midst of queries. What is made from now on is collected as ever. Where somebody has
    frozen what was there before, it stays so.
    """
    ours = not gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
