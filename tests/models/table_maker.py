"""A maker of selection tables without a process, for planners that run under virtual time."""

import asyncio

from sluicegate.domain.table import SelectionTable
from sluicegate.planner.policy_tables.table_requests import LibraryRules
from sluicegate.planner.policy_tables.table_schedule import Make
from sluicegate.stages.planner.table_process import answer_to, decode_answer, encode_request


class MakerHere:
    """Makes tables as the process does, in ``TAKES`` seconds."""

    TAKES = 1.0

    def __init__(self, rules: LibraryRules) -> None:
        self._rules = rules

    async def start(self) -> None:
        """Nothing."""

    async def make(self, make: Make) -> tuple[SelectionTable, ...]:
        await asyncio.sleep(self.TAKES)
        return decode_answer(answer_to(encode_request(make, self._rules)))

    async def close(self) -> None:
        """Nothing."""
