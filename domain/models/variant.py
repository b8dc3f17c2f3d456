"""A variant: one way to answer an app's queries, at an accuracy that was measured or is nominal."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to answer an app's queries. ``accuracy``: native metric on held-out data, 0..1, ``accuracy_se`` its
    standard error.

    ``nominal``: the accuracy was declared, not measured. ``model``: path of the model file inside the catalogue's
    folder, ``digest`` its SHA-256; both empty for variants that exist as a profile only.
    ``family``: architecture, for scaling rules that stay within one.
    """

    name: str
    app: str
    accuracy: float
    accuracy_se: float = 0.0
    nominal: bool = False
    family: str = ""
    model: str = ""
    digest: str = ""
    size_bytes: int = 0
