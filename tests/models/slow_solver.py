"""A process that solves with a planner that says that it was asked, and waits as long as a file is there."""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.problems.problem import Allocation, Planner, Problem
from sluicegate.stages.planner.asked_process import answer_questions
from sluicegate.stages.planner.solver_process import answer_to

FOLDER = "SLOW_SOLVER"
"""Environment variable: where the files are."""


@dataclass
class Waits:
    """In ``folder``."""

    folder: Path
    name: str = "waits"

    def allocate(self, problem: Problem) -> Allocation:
        (self.folder / f"asked-{os.getpid()}").touch()
        while (self.folder / "hangs").exists():
            pass
        return GreedyFill().allocate(problem)

    @property
    def asked(self) -> int:
        """By so many processes."""
        return len(list(self.folder.glob("asked-*")))


if __name__ == "__main__":
    waits: defaultdict[str, Callable[[], Planner]] = defaultdict(lambda: lambda: Waits(Path(os.environ[FOLDER])))
    answer_questions(lambda question: answer_to(question, waits))
