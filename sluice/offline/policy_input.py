"""What ``sluice policy`` reads and writes: profiles in either format, questions from options, tables as files."""

from dataclasses import dataclass
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel, candidates, pareto_front
from sluicegate.planner.policy_tables.table_codec import decode
from sluicegate.profiles.catalogue.catalogue_folder import DOCUMENT, load_catalogue
from sluicegate.profiles.formats.ramsis_json import DEVICE_TYPE, load_ramsis
from sluicegate.sluice.console import write_whole

MAX_TABLE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """The options of the command, as given."""

    profiles: Path
    app: str
    device_type: str | None
    slo_ms: float
    workers: int
    qps: float
    criterion: str
    price: float
    grid: str
    queue: int
    arrival_shape: float
    dispatch: str
    share: float | None
    batching: str
    late: str
    phases: int


def model_of(question: Question) -> SelectionModel:
    """The question, with the variants on the Pareto front. Raises InvalidInputError or ConfigurationError."""
    grid = question.grid
    if grid != "model" and not grid.isdecimal():
        raise InvalidInputError("grid", f"{grid!r} is neither a number of slack bins nor model")
    variants = _variants(question)
    return SelectionModel(
        variants=pareto_front(variants),
        slo=question.slo_ms / 1e3,
        workers=question.workers,
        qps=question.qps,
        criterion=question.criterion,  # type: ignore[arg-type]  # checked by the model, with the choices
        violation_price=question.price,
        queue=question.queue,
        grid="model" if grid == "model" else int(grid),
        arrival_shape=question.arrival_shape,
        dispatch=question.dispatch,  # type: ignore[arg-type]
        share=question.share,
        batching=question.batching,  # type: ignore[arg-type]
        late=question.late,  # type: ignore[arg-type]
        phases=question.phases,
    )


def _variants(question: Question) -> tuple[Candidate, ...]:
    path = question.profiles
    if _is_catalogue(path):
        catalogue = load_catalogue(path if path.is_dir() else path.parent, verify=False)
        kind = question.device_type or _only_type(catalogue.device_types)
    else:
        catalogue = load_ramsis(path, tasks=(question.app,), table="artifact", slo={question.app: 1.0})
        kind = question.device_type or DEVICE_TYPE
    if question.app not in catalogue.apps:
        raise InvalidInputError("app", f"{question.app!r} is not in {path}; it has {', '.join(catalogue.apps)}")
    found = candidates(catalogue, question.app, kind)
    if not found:
        raise InvalidInputError("device-type", f"no variant of {question.app} is profiled on {kind!r}")
    return found


def _is_catalogue(path: Path) -> bool:
    """By what is there: a folder with a catalogue in it, or a document that is not of the other format."""
    if path.is_dir():
        return (path / DOCUMENT).exists()
    return path.name == DOCUMENT


def _only_type(types: tuple[str, ...]) -> str:
    if len(types) != 1:
        raise InvalidInputError("device-type", f"the catalogue profiles {', '.join(types) or 'none'}; choose one")
    return types[0]


def read_table(path: Path) -> SelectionTable:
    """Raises ConfigurationError for a missing file, InvalidInputError for a malformed one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TABLE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}; sluice policy generate --out writes one"
        ) from error
    if len(data) > MAX_TABLE_BYTES:
        raise InvalidInputError(path.name, f"holds more than {MAX_TABLE_BYTES} bytes")
    try:
        return decode(data)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path.name}: {error.field}", error.problem) from error


def write_bytes(path: Path, data: bytes) -> None:
    """All of it or nothing. Raises ConfigurationError."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}; choose another place") from error
