"""Registration: from trained models and labelled rows to an app that is served, as a job that can be interrupted.

``register(Request(model=..., app=..., validation=...))`` does what ``sluice register`` does. Steps: check the models
(in a child process), read the validation set, make the candidates, run each on the rows kept for scoring, profile them
interleaved, choose, publish. Each step's result is kept as it comes; the same request goes on from there. Nothing is
visible to anyone before the catalogue is replaced, at the end, in one step.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.sustainable_rate import window_bound
from sluicegate.executors.demo_catalogue import home_folder, machine
from sluicegate.executors.onnx.runtime_options import runtime_package
from sluicegate.executors.profile_runner import Progress, silent
from sluicegate.profiles.catalogue.catalogue_folder import digest_of
from sluicegate.profiles.catalogue.registered_apps import Record, Registered
from sluicegate.profiles.demo.build_models import FAMILIES, HEAVY
from sluicegate.profiles.formats.catalogue_json import AppDocument, WeaklyHardDocument
from sluicegate.profiles.registration import task_metrics
from sluicegate.profiles.registration.students import WIDTHS
from sluicegate.profiles.registration.validation_set import ValidationSet, read_validation
from sluicegate.sluice.registration.given_models import Given, check_models
from sluicegate.sluice.registration.registration_job import DEFAULT_SLO, Job, Request
from sluicegate.sluice.registration.registration_journal import Journal

GENERATOR = "4"
"""Changes when the same request would give other variants."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What came of it. ``known``: the same had been registered before; ``resumed``: it was begun before.

    ``replaced``: the version that was served until then and the files of its models, empty where none was.
    """

    record: Record
    folder: Path
    known: bool = False
    resumed: bool = False
    replaced: str = ""


def register(request: Request, home: Path | None = None, progress: Progress = silent) -> Registration:
    """Register, blocking. Raises InvalidInputError, ConfigurationError with one line each."""
    return asyncio.run(register_model(request, home, progress))


async def register_model(request: Request, home: Path | None = None, progress: Progress = silent) -> Registration:
    """Register. Cancelled, it leaves what it has done to the next time the same is asked."""
    _check_request(request)
    registered = Registered(home or home_folder())
    given = await check_models((request.model, *request.others), request.limits, progress)
    rows = await asyncio.to_thread(read_validation, request.validation, given[0].interface.inputs)
    terms = {"min_accuracy": request.min_accuracy, "weight": request.weight}
    key = _key(request, given, rows)
    with registered.locked(f"{request.app}-job", wait=False):
        known = registered.find(request.app, key)
        if known is not None:
            if registered.served_version(request.app) != known.version:
                registered.publish(known, **terms)
            elif any(term is not None for term in (request.slo, *terms.values())):
                registered.change(request.app, slo=request.slo, **terms)
            return Registration(known, registered.folder, known=True)
        journal = Journal(registered.folder / "jobs" / f"{request.app}-{key[:16]}")
        job = Job(request, registered, journal, key, given, rows, progress)
        record = await job.run()
        before = registered.readable_record(request.app)
        registered.keep(record, job.samples())
        registered.publish(record, **terms)
        journal.remove()
    progress("registered", 1.0)
    replaced = f"version {before.version} ({before.source})" if before is not None else ""
    return Registration(record, registered.folder, resumed=journal.resumed, replaced=replaced)


def _check_request(request: Request) -> None:
    task_metrics.metric(request.metric)
    window_bound(1, request.promise)
    if request.app in FAMILIES or request.app in HEAVY:
        raise InvalidInputError("app", f"{request.app!r} is an app of the demo; choose another name")
    if any(not 1 <= n <= 256 for n in request.threads):
        raise InvalidInputError("threads", f"{list(request.threads)}; give numbers from 1 to 256")
    try:
        AppDocument(
            name=request.app,
            slo_s=DEFAULT_SLO if request.slo is None else request.slo,
            max_consecutive=request.promise.max_consecutive,
            weakly_hard=tuple(WeaklyHardDocument(m=w.m, k=w.k) for w in request.promise.weakly_hard),
            min_accuracy=0.0 if request.min_accuracy is None else request.min_accuracy,
            weight=1.0 if request.weight is None else request.weight,
        )
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        names = {"name": "app", "slo_s": "slo", "min_accuracy": "min_accuracy", "weight": "weight"}
        what = names.get(str(next(iter(fault["loc"]), "")), "promise")
        why = fault["msg"] if what != "app" else "name it by letters, digits, _ and -, 63 at most, no _ or - first"
        raise InvalidInputError(what, f"{fault['input']!r:.80}: {why}") from error


def _key(request: Request, given: Sequence[Given], rows: ValidationSet) -> str:
    digests = [[one.label, digest_of(one.model)] for one in given]
    package, runtime = runtime_package() or ("onnxruntime", "")  # none: the models could not have been checked
    decides = {
        "generator": GENERATOR,
        **({"model": digests[0][1]} if len(given) == 1 else {"models": digests}),
        "validation": rows.digest,
        "metric": request.metric,
        "slo": request.slo,
        "threads": sorted(set(request.threads)),
        "batches": list(request.batches),
        "effort": asdict(request.effort),
        "varying": sorted(request.varying),
        "seed": request.seed,
        **({"family": list(WIDTHS)} if request.make_family else {}),
        **({"promise": asdict(request.promise)} if request.promise.active else {}),
        "machine": machine(),
        **{name: version(name) for name in ("onnx", "numpy")},
        "onnxruntime": runtime,
        **({"package": package} if package != "onnxruntime" else {}),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


__all__ = ["Registration", "Request", "register", "register_model"]
