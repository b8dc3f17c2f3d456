"""Errors come back from another process as they were."""

from multiprocessing.reduction import ForkingPickler

import pytest

from sluicegate.domain.errors import (
    ConfigurationError,
    ExecutionError,
    IllegalEventError,
    InvalidInputError,
    LoadError,
    SluiceError,
)


@pytest.mark.parametrize(
    "error",
    [
        InvalidInputError("tasks", "is not an object"),
        ConfigurationError("SLUICE_DATA is not set"),
        IllegalEventError("ended twice", ("opened", "ended")),
        ExecutionError("out of memory", fatal=True, apart=True),
        LoadError("no such file"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_whole_from_another_process(error: SluiceError) -> None:
    back = ForkingPickler.loads(ForkingPickler.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
