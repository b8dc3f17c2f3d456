"""``python -m sluicegate``: the command ``sluice``."""

from sluicegate.sluice.main import run

run()
