"""Types of fields that settings, scenarios and other files share: bounds are declared once.

Whatever has one of these refuses NaN, infinities and what is beyond its bounds, by the field's name.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

T = TypeVar("T")

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
LoadTime = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
"""Seconds that a variant takes to be loaded."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
"""What is looked up where it is used: a policy, a geometry, a pattern of names."""
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


def _of_file(path: Path) -> Path:
    name = os.fsencode(path)
    if b"\0" in name or len(name) > 4095 or any(len(part) > 255 for part in name.split(b"/")):
        raise ValueError(f"{str(path)!r:.100} cannot be the path of a file or folder")
    return path


PathOfFile = Annotated[Path, AfterValidator(_of_file)]
"""Of a file or folder that there may be."""


def distinct(values: Sequence[T]) -> Sequence[T]:
    """``values``, none of which is given twice. Raises ValueError."""
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"{value!r:.100} is given twice")
    return values


Names = Annotated[tuple[Name, ...], AfterValidator(distinct)]
