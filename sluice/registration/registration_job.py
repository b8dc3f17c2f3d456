"""The steps of one registration, from checked models to the record of their candidates.

Rules. Rows are split once, by a seed: a part, never scored, calibrates static quantisation; all candidates are scored
on the same rest. Only registered models must work; a candidate that fails is listed with the reason. Each step's
result is in the journal before the next begins, but that of a recipe whose process was killed: it may do another time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import NO_PROMISE, App, Promise
from sluicegate.domain.models.tensor import BYTES, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.demo_catalogue import machine
from sluicegate.executors.evaluation import Evaluation, check_batches, check_lengths, evaluate, query_of, specs_of
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.onnx.variant_builder import GeneratorLimits, VariantMaker
from sluicegate.executors.profile_runner import Progress, silent
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, model_path, save_model
from sluicegate.profiles.catalogue.profiler import BATCH_SIZES, Effort
from sluicegate.profiles.catalogue.registered_apps import Record, Registered
from sluicegate.profiles.formats.catalogue_json import MAX_ROW_BYTES, app_document, variant_to_document
from sluicegate.profiles.registration import task_metrics
from sluicegate.profiles.registration.batch_axis import check_varying
from sluicegate.profiles.registration.output_detection import (
    AnswerOutput,
    answer_output,
    answers_of,
    check_skill,
    check_truth,
)
from sluicegate.profiles.registration.pareto_choice import Candidate, verdicts
from sluicegate.profiles.registration.recipes import ORIGINAL, RECIPES
from sluicegate.profiles.registration.validation_set import Array, ValidationSet, row_bytes
from sluicegate.sluice.registration.candidate_profiling import CandidateProfiling
from sluicegate.sluice.registration.given_models import Given, source_of
from sluicegate.sluice.registration.registration_candidates import Made, document_of, servable, targets
from sluicegate.sluice.registration.registration_journal import Journal
from sluicegate.sluice.registration.student_models import shared, students

_CALIBRATION_ROWS = 128
_SAMPLES = 64
"""Rows kept to try the app with."""
DEFAULT_SLO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to register. ``others``: further models of the same task, smaller and larger ones, to scale between.

    ``slo``: seconds (None: 0.1, or five times what the model takes, if that is more).

    ``threads``: device types to profile for besides a CUDA device where there is one: 1 is ``cpu``, n is ``cpu<n>``;
    none of them where it is empty.
    ``chance_allowed``: also take a model that does no better than chance on the validation set. ``run_timeout``:
    seconds that loading, or one batch, may take. ``varying``: inputs whose rows may be shorter than the longest of the
    validation set, in which they are filled up with zeros. ``promise``: what each stream of the app is promised.
    ``make_family``: also train smaller models, on half of the rows, which then score none. ``min_accuracy``,
    ``weight``: terms that it is served on, None: as any app's.
    """

    model: Path
    app: str
    validation: Path
    others: tuple[Path, ...] = ()
    metric: str = "accuracy"
    slo: float | None = None
    threads: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = BATCH_SIZES
    effort: Effort = field(default_factory=Effort)
    limits: GeneratorLimits = field(default_factory=GeneratorLimits)
    chance_allowed: bool = False
    run_timeout: float = 60.0
    varying: tuple[str, ...] = ()
    promise: Promise = NO_PROMISE
    make_family: bool = False
    min_accuracy: float | None = None
    weight: float | None = None
    seed: int = 0


class Job:
    """One registration's steps."""

    def __init__(
        self,
        request: Request,
        registered: Registered,
        journal: Journal,
        key: str,
        given: Sequence[Given],
        rows: ValidationSet,
        progress: Progress,
    ) -> None:
        self._request = request
        self._registered = registered
        self._folder = registered.folder
        self._journal = journal
        self._key = key
        self._given = given
        self._all_rows = rows
        self._progress = progress
        self._version = 1 + max(registered.versions(request.app), default=0)
        interface = given[0].interface
        shapes = {name: array.shape[1:] for name, array in rows.inputs.items()}
        if row_bytes(interface.inputs, shapes) > MAX_ROW_BYTES:
            raise InvalidInputError("validation", f"a row has over {MAX_ROW_BYTES} bytes; that cannot be sent")
        if request.make_family and any(p.datatype == BYTES for p in interface.inputs):
            raise InvalidInputError("make_family", "smaller models are made of numbers, and this one takes texts")
        for one in given:
            with one.blamed():
                check_varying(request.varying, one.interface.inputs)
        self._inputs = tuple(
            TensorSpec(p.name, p.datatype, shapes[p.name], p.name in request.varying) for p in interface.inputs
        )
        order = np.random.default_rng(request.seed).permutation(rows.rows)
        calibrating = min(_CALIBRATION_ROWS, rows.rows // 4)
        calibration, learning, scored = shared(rows, order, calibrating, request.make_family)
        self._calibration, self._learning, self._rows = rows.take(calibration), rows.take(learning), rows.take(scored)
        self._skipped: dict[str, str] = {}
        self._targets = targets(request.threads)
        self._apps = {request.app: self._app(())}
        # A model that was never run may ask for all memory there is: its process may not have it.
        self._evaluator = self._executor(Runtime(address_space_bytes=request.limits.memory_bytes))

    async def run(self) -> Record:
        """All steps; the record, not yet kept."""
        candidates: list[Made] = []
        originals: list[Made] = []
        try:
            for given in self._given:
                with given.blamed():
                    made, output, app = await self._candidates(given, candidates)
                originals.append(made[0])
                candidates += made
            if self._request.make_family:
                candidates += await self._students(originals, output, app)
        finally:
            await self._evaluator.close()
        of = {original.model: original for original in originals}
        for candidate in candidates:
            self._score(candidate, of[candidate.model])
        rows = [query_of(self._inputs, self._rows, i % self._rows.rows) for i in range(max(self._request.batches))]
        needed = {original.variant.name for original in originals}
        profiling = CandidateProfiling(
            app=app,
            rows=rows,
            batches=self._request.batches,
            effort=self._request.effort,
            seed=self._request.seed,
            journal=self._journal.folder,
            make_executor=self._executor,
            progress=self._share(0.5, 0.5),
        )
        for target, runtime in self._targets:
            await profiling.on(target, runtime, candidates, needed)
        return self._record(candidates, output, self._with_slo(app, originals))

    async def _candidates(self, given: Given, before: Sequence[Made]) -> tuple[list[Made], AnswerOutput, App]:
        """One registered model and all that could be made of it, each with its answers on the scored rows."""
        original, output, app = await self._original(given)
        if before and app != self._apps[app.name]:
            told, first = _outputs(app), _outputs(self._apps[app.name])
            raise InvalidInputError(
                "model", f"gives {told}, and {self._given[0].path.name[:80]} {first}; export them with the same outputs"
            )
        self._apps[app.name] = app
        candidates = [original]
        recipes = [r for r in RECIPES if r != ORIGINAL]
        unmade = [r for r in recipes if self._finished(given.named(r)) is None]
        path = self._folder / model_path(digest_of(given.model))
        start = self._given.index(given)
        async with VariantMaker(path, unmade, self._calibration.inputs, self._request.limits) as maker:
            for i, recipe in enumerate(recipes):
                done = (start + i / len(recipes)) / len(self._given)
                self._progress(f"make {given.named(recipe)}", 0.1 + 0.4 * done)
                known = {c.variant.digest for c in (*before, *candidates)}
                made = await self._candidate(given, recipe, output, maker, known)
                if made is not None:
                    candidates.append(made)
        return candidates, output, app

    async def _students(self, originals: Sequence[Made], output: AnswerOutput, app: App) -> list[Made]:
        """Smaller models that answer as the largest of the registered ones does."""
        teacher = max(originals, key=lambda made: made.variant.size_bytes)
        found: list[Made] = []
        await self._evaluator.start()
        learned = students(
            self._evaluator, teacher.variant, self._inputs, app.outputs, self._learning, self._request.seed
        )
        async for name, model in learned:
            self._progress(f"make {name}", 0.5)
            variant = self._keep_model(name, model)
            try:
                answered = await self._evaluate(variant)
            except InvalidInputError as error:
                self._skipped[name] = error.problem
                continue
            answers = answers_of(output, np.nan_to_num(answered.outputs[output.name]))
            found.append(Made(name, variant, answers, answered.finite, teacher.model))
        return found

    async def _original(self, given: Given) -> tuple[Made, AnswerOutput, App]:
        name = given.named(ORIGINAL)
        variant = self._keep_model(name, given.model)
        done = self._journal.get(given.named("original"))
        kept = self._journal.arrays(f"answers-{name}")
        if done is not None and kept is not None:
            outputs = tuple(TensorSpec(n, d, tuple(s)) for n, d, s in done["outputs"])
            output = AnswerOutput(done["answer"][0], done["answer"][1])
            return Made(name, variant, kept[0], True, given.label), output, self._app(outputs)
        found, output = await self._first_run(given, variant)
        answers = answers_of(output, found.outputs[output.name])
        if not self._request.chance_allowed:
            check_skill(self._request.metric, answers, self._rows.labels)
        outputs = specs_of(found.outputs)
        self._journal.put_arrays(f"answers-{name}", [answers])
        self._journal.put(
            given.named("original"),
            {
                "outputs": [[s.name, s.datatype, list(s.row_shape)] for s in outputs],
                "answer": [output.name, output.reading],
            },
        )
        return Made(name, variant, answers, True, given.label), output, self._app(outputs)

    async def _first_run(self, given: Given, variant: Variant) -> tuple[Evaluation, AnswerOutput]:
        found = await self._run_or_blame_the_batch(given, variant)
        if not found.finite:
            raise InvalidInputError("model", "answers NaN or infinity on the validation set; it cannot be served")
        output = answer_output(found.outputs, self._request.metric, texts=self._rows.labels.dtype.kind == "U")
        check_truth(output, found.outputs[output.name], self._rows.labels)
        await check_batches(self._evaluator, variant, self._inputs, self._rows, found)
        if self._request.varying:
            await check_lengths(self._evaluator, variant, self._inputs, self._rows, found)
        return found, output

    async def _run_or_blame_the_batch(self, given: Given, variant: Variant) -> Evaluation:
        try:
            return await self._evaluate(variant, self._share(0.02, 0.08))
        except InvalidInputError as error:
            fixed = given.interface.fixed_batch
            if fixed is None:
                raise
            problem = f"fixes its batch at {fixed}, and with another {error.problem}; export it with a free batch axis"
            raise InvalidInputError(error.field, problem) from error

    async def _candidate(
        self, given: Given, recipe: str, output: AnswerOutput, maker: VariantMaker, digests: set[str]
    ) -> Made | None:
        """One more, or None with the reason among the skipped ones."""
        name = given.named(recipe)
        done = self._finished(name) or await self._make(given, recipe, output, maker, digests)
        if done["skipped"]:
            self._skipped[name] = done["skipped"]
            return None
        kept = self._journal.arrays(f"answers-{name}")
        assert kept is not None  # written before the step's result
        # Another version may have been registered since the job began.
        variant = replace(Variant(**done["variant"]), name=self._name(name))
        return Made(name, variant, kept[0], done["finite"], given.label)

    def _finished(self, name: str) -> dict[str, Any] | None:
        """What came of making a candidate, None where its answers are not there as well."""
        done = self._journal.get(f"recipe-{name}")
        whole = done is not None and (done["skipped"] or self._journal.arrays(f"answers-{name}") is not None)
        return done if whole else None

    async def _make(
        self, given: Given, recipe: str, output: AnswerOutput, maker: VariantMaker, digests: set[str]
    ) -> dict[str, Any]:
        name = given.named(recipe)
        made = await maker.make(recipe)
        result: dict[str, Any] = {"skipped": made.skipped}
        if made.model is not None and digest_of(made.model) in digests:
            result = {"skipped": "it is the same graph as another's"}
        elif made.model is not None:
            variant = self._keep_model(name, made.model)
            try:
                found = await self._evaluate(variant)
            except InvalidInputError as error:
                result = {"skipped": error.problem}
            else:
                values = np.nan_to_num(found.outputs[output.name])
                self._journal.put_arrays(f"answers-{name}", [answers_of(output, values)])
                result = {"skipped": "", "variant": variant_to_document(variant), "finite": found.finite}
        if not made.killed:
            self._journal.put(f"recipe-{name}", result)
        return result

    async def _evaluate(self, variant: Variant, progress: Progress = silent) -> Evaluation:
        await self._evaluator.start()  # again where the one before took its process with it
        return await evaluate(self._evaluator, variant, self._inputs, self._rows, progress)

    def _score(self, candidate: Made, original: Made) -> None:
        metric, truth = self._request.metric, self._rows.labels
        candidate.score = task_metrics.score(metric, candidate.answers, truth)
        candidate.gap = task_metrics.difference(metric, original.answers, candidate.answers, truth)
        candidate.variant = replace(
            candidate.variant,
            accuracy=candidate.score.value,
            accuracy_se=min(1.0, candidate.score.se),
        )

    def _record(self, candidates: list[Made], output: AnswerOutput, app: App) -> Record:
        chance = task_metrics.chance(self._request.metric, self._rows.labels)
        by_target = {t: self._verdicts(candidates, t, chance) for t in candidates[0].profiles}
        return Record(
            app=app_document(app),
            version=self._version,
            key=self._key,
            metric=self._request.metric,
            chance=chance,
            answer_output=output.name,
            answer_reading=output.reading,
            scored_rows=self._rows.rows,
            calibration_rows=self._calibration.rows,
            source=source_of(self._given),
            source_digest=digest_of(b"".join(given.model for given in self._given)),
            validation_digest=self._all_rows.digest,
            registered_at=_now(),
            machine=machine(),
            notes=tuple(f"{g.label}: {n}" if g.label else n for g in self._given for n in g.interface.notes),
            candidates=tuple(document_of(c, by_target) for c in candidates),
            skipped=self._skipped,
        )

    def _verdicts(self, made: list[Made], target: str, chance: float) -> dict[str, str]:
        candidates = [c for c in made if target not in c.unloaded]
        measured = [
            Candidate(
                name=c.variant.name,
                score=c.score,
                gap=c.gap,
                rounds=c.rounds[target],
                finite=c.finite,
                model=c.model,
            )
            for c in candidates
        ]
        answers = {c.variant.name: c.answers for c in candidates}
        metric, truth = self._request.metric, self._rows.labels
        found = verdicts(
            measured, chance, lambda one, other: task_metrics.difference(metric, answers[one], answers[other], truth).se
        )
        return found | {c.variant.name: c.unloaded[target] for c in made if target in c.unloaded}

    def _keep_model(self, recipe: str, model: bytes) -> Variant:
        digest = digest_of(model)
        try:
            save_model(self._folder, digest, model)
        except OSError as error:
            raise ConfigurationError(f"cannot write in {self._folder}: {error.strerror}; set SLUICE_HOME") from error
        return Variant(
            name=self._name(recipe),
            app=self._request.app,
            accuracy=0.0,
            family=self._request.app,
            model=model_path(digest),
            digest=digest,
            size_bytes=len(model),
        )

    def _name(self, recipe: str) -> str:
        return f"{self._request.app}.v{self._version}.{recipe}"

    def _app(self, outputs: tuple[TensorSpec, ...]) -> App:
        request = self._request
        slo = request.slo or DEFAULT_SLO
        return servable(App(name=request.app, slo=slo, promise=request.promise, inputs=self._inputs, outputs=outputs))

    def _with_slo(self, app: App, originals: Sequence[Made]) -> App:
        if self._request.slo is not None:
            return app
        slowest = max(p.points[0].p95 for original in originals for p in original.profiles.values())
        return replace(app, slo=max(DEFAULT_SLO, float(f"{5.0 * slowest:.2g}")))

    def _executor(self, runtime: Runtime) -> OnnxExecutor:
        timeout = self._request.run_timeout
        return OnnxExecutor(self._folder, self._apps, runtime, run_timeout=timeout, load_timeout=timeout)

    def _share(self, start: float, length: float) -> Progress:
        return lambda what, done: self._progress(what, start + length * done)

    def samples(self) -> dict[str, Array]:
        """Some scored rows, inputs in the app's order, then their true answers."""
        some = self._rows.take(np.arange(min(_SAMPLES, self._rows.rows)))
        return {**{s.name: some.inputs[s.name] for s in self._inputs}, "": some.labels}


def _outputs(app: App) -> str:
    return ", ".join(f"{s.name[:80]} ({s.datatype} {list(s.row_shape)})" for s in app.outputs)


def _now() -> float:
    from sluicegate.stages.runtime.system_clock import SystemClock

    return SystemClock().wall()
