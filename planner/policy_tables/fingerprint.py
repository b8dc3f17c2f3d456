"""What a table was made of, as one short string: profile and assumptions, not the load."""

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from sluicegate.planner.mdp.mdp_model import SelectionModel


def fingerprint(model: "SelectionModel") -> str:
    """SHA-256 (16 hexadecimal digits) of everything in ``model`` but its load: equal for all tables of a library."""
    content = asdict(model)
    del content["qps"]
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
