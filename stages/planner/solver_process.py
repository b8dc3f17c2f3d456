"""The process that solves: questions as JSON in, allocations out.

An answer is one byte, ``A`` and an allocation or ``E`` and what went wrong as text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pydantic import ConfigDict, TypeAdapter

from sluicegate.domain.errors import SluiceError
from sluicegate.domain.events import Registered
from sluicegate.planner.control.solve_or_fallback import answered
from sluicegate.planner.geometry.joint_planner import JointGeometry
from sluicegate.planner.problems.problem import Allocation, Planner, Problem
from sluicegate.planner.registry import PLANNERS
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.planner.asked_process import answer_questions
from sluicegate.stages.runtime.malloc_trim import release_freed

_EMPTY = Catalogue.of((), (), ())


@dataclass(frozen=True, slots=True)
class Question:
    """A question: ``problem`` to the planner called ``planner``; ``joint``: geometry and hosting together.

    The problem's catalogue and what is keyed by pairs in it stand beside it: JSON has no such keys.
    """

    planner: str
    joint: bool
    problem: Problem
    served: Registered
    latency_factor: tuple[tuple[str, str, float], ...]


# Pydantic takes a configuration for a union, not for a dataclass of its own.
_EXACT = ConfigDict(ser_json_inf_nan="constants")
_question: TypeAdapter[Question | None] = TypeAdapter(Question | None, config=_EXACT)
_allocation: TypeAdapter[Allocation | None] = TypeAdapter(Allocation | None, config=_EXACT)


def encode_question(planner: str, problem: Problem, *, joint: bool) -> bytes:
    """For the process."""
    factors = tuple((variant, kind, factor) for (variant, kind), factor in problem.latency_factor.items())
    bare = replace(problem, catalogue=_EMPTY, latency_factor={})
    return _question.dump_json(Question(planner, joint, bare, problem.catalogue.registered, factors))


def answer_to(question: bytes, planners: Mapping[str, Callable[[], Planner]] = PLANNERS) -> bytes:
    """Never raises."""
    try:
        asked = _question.validate_json(question)
        assert asked is not None
        served = asked.served
        problem = replace(
            asked.problem,
            catalogue=Catalogue.of(served.apps, served.variants, served.profiles),
            latency_factor={(variant, kind): factor for variant, kind, factor in asked.latency_factor},
        )
        chosen = planners[asked.planner]()
        return b"A" + _allocation.dump_json(answered(JointGeometry(chosen) if asked.joint else chosen, problem))
    except Exception as error:  # told to the parent, which logs it
        return f"E{type(error).__name__}: {error}".encode()
    finally:
        release_freed()


def decode_answer(answer: bytes) -> Allocation:
    """Raises SluiceError with what went wrong."""
    if answer[:1] != b"A":
        raise SluiceError(answer[1:].decode(errors="replace") or "no answer")
    found = _allocation.validate_json(answer[1:])
    assert found is not None
    return found


if __name__ == "__main__":
    answer_questions(answer_to)
