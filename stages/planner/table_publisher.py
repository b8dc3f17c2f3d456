"""Making selection tables beside the planner, in a process of its own."""

import logging

from sluicegate.domain.table import SelectionTable
from sluicegate.planner.policy_tables.table_requests import LibraryRules
from sluicegate.planner.policy_tables.table_schedule import Make
from sluicegate.stages.planner.asked_process import AskedProcess
from sluicegate.stages.planner.table_process import decode_answer, encode_request

log = logging.getLogger(__name__)


class TableMaker:
    """The process that makes tables, so that seconds of linear algebra hold nothing up.

    Started ahead, since its imports take a second.
    """

    def __init__(self, rules: LibraryRules) -> None:
        self._rules = rules
        self._process = AskedProcess("sluicegate.stages.planner.table_process", _ended)

    async def start(self) -> None:
        """Start it, and keep it."""
        self._process.start()

    async def make(self, make: Make) -> tuple[SelectionTable, ...]:
        """Raises SluiceError with what went wrong."""
        return decode_answer(await self._process.ask(encode_request(make, self._rules)))

    async def close(self) -> None:
        """End it."""
        await self._process.close()


def _ended(why: str) -> None:
    log.warning("the process that makes tables %s; starting it again", why)
