"""What every part of a scenario file is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
