"""The catalogue as a JSON document, version 1: what ``catalogue.json`` holds and the control topics carry.

Rules. Every document is hostile until it is read: unknown fields, numbers that are not finite, names that could leave
a folder or a topic's alphabet, and sizes beyond the limits below are errors that name the field. Writing is canonical
(sorted keys, no spaces), so that equal catalogues give equal bytes, and the fingerprint is the SHA-256 of those bytes.
"""

import hashlib
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App, Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.field_types import Weight

MAX_DOCUMENT_BYTES = 16 << 20
"""A document larger than this is refused unread."""
MAX_BATCH = 4096
"""Largest batch a profile may hold: a latency curve has one number for each batch up to it."""
MAX_LATENCY = 3600.0
"""Seconds."""
MAX_FBR = 4.0
"""No batch asks for more than this many times a slice's bandwidth."""
MAX_ROW_BYTES = 64 << 20
"""Largest row of one tensor."""

AppName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
"""Part of topic names, hence their alphabet without the dot that separates."""
# A slash is allowed (names such as organisation/model), a path that climbs is not: no segment starts with a dot.
VariantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")]
LABEL = r"^[A-Za-z0-9._:/ -]{0,128}$"
Label = Annotated[str, StringConstraints(pattern=LABEL)]
Latency = Annotated[float, Field(gt=0.0, le=MAX_LATENCY, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=1 << 50)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WeaklyHardDocument(_Strict):
    """At most ``m`` misses among any ``k`` consecutive queries."""

    m: Annotated[int, Field(ge=0, le=100_000)]
    k: Annotated[int, Field(ge=1, le=100_000)]

    @model_validator(mode="after")
    def _can_be_broken(self) -> Self:
        if self.m >= self.k:
            raise ValueError(f"{self.m} misses among {self.k} queries promise nothing; leave it out")
        return self


class TensorSpecDocument(_Strict):
    """A tensor's name, Open Inference Protocol datatype and shape a row, the longest where rows vary in length."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    datatype: str
    row_shape: Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 24)], ...], Field(max_length=8)]
    varying: bool = False


class AppDocument(_Strict):
    """An application. ``slo_s``: seconds. ``weight``: of its answers beside those of other apps, in plans."""

    name: AppName
    slo_s: Latency
    query_class: Literal["strict", "best_effort"] = "strict"
    min_accuracy: Fraction = 0.0
    weight: Weight = 1.0
    max_consecutive: Annotated[int, Field(ge=0, le=100_000)] | None = None
    weakly_hard: Annotated[tuple[WeaklyHardDocument, ...], Field(max_length=16)] = ()
    inputs: Annotated[tuple[TensorSpecDocument, ...], Field(max_length=32)] = ()
    outputs: Annotated[tuple[TensorSpecDocument, ...], Field(max_length=32)] = ()
    max_rows: Annotated[int, Field(ge=1, le=MAX_BATCH)] = 16


class VariantDocument(_Strict):
    """A variant. ``model``: ``models/<digest>.onnx`` inside the catalogue's folder, or empty with ``digest``."""

    name: Annotated[VariantName, Field(max_length=128)]
    app: AppName
    accuracy: Fraction
    accuracy_se: Fraction = 0.0
    nominal: bool = False
    family: Label = ""
    model: Annotated[str, Field(max_length=256)] = ""
    digest: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""
    size_bytes: Bytes = 0


class PointDocument(_Strict):
    """Latency of one batch size, seconds."""

    batch: Annotated[int, Field(ge=1, le=MAX_BATCH)]
    median_s: Latency
    p95_s: Latency
    cpu_s: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.p95_s < self.median_s:
            raise ValueError(f"a p95 of {self.p95_s:g} s is below the median, {self.median_s:g} s; profile it again")
        return self


class LengthDocument(_Strict):
    """Latency of inputs of one length."""

    length: Annotated[int, Field(ge=1, le=1 << 24)]
    points: Annotated[tuple[PointDocument, ...], Field(min_length=1, max_length=MAX_BATCH)]


class ProfileDocument(_Strict):
    """One variant on one device type. ``length``, ``shorter``: where inputs vary in length, else 0 and nothing.

    ``fbr``: part of the bandwidth that a batch takes, where it was measured, else 1.
    """

    variant: Annotated[VariantName, Field(max_length=128)]
    device_type: Annotated[Label, Field(min_length=1)]
    points: Annotated[tuple[PointDocument, ...], Field(min_length=1, max_length=MAX_BATCH)]
    memory_bytes: Bytes = 0
    load_s: Annotated[float, Field(ge=0.0, le=MAX_LATENCY, allow_inf_nan=False)] = 1.0
    length: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    shorter: Annotated[tuple[LengthDocument, ...], Field(max_length=64)] = ()
    fbr: Annotated[float, Field(ge=0.0, le=MAX_FBR, allow_inf_nan=False)] = 1.0


class CatalogueDocument(_Strict):
    """The whole. ``origin``: how it came to be (machine, builder), outside the fingerprint."""

    format: Literal["sluice-catalogue/1"] = "sluice-catalogue/1"
    origin: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=32)] = {}
    apps: Annotated[tuple[AppDocument, ...], Field(max_length=1_000)] = ()
    variants: Annotated[tuple[VariantDocument, ...], Field(max_length=10_000)] = ()
    profiles: Annotated[tuple[ProfileDocument, ...], Field(max_length=100_000)] = ()


def fingerprint(catalogue: Catalogue) -> str:
    """SHA-256 (hex) of the catalogue's content: the same on every machine, whatever order it was built in."""
    return hashlib.sha256(_canonical(to_document(catalogue))).hexdigest()


def encode(catalogue: Catalogue, origin: dict[str, str] | None = None) -> bytes:
    """The document as indented JSON with sorted keys."""
    document = to_document(catalogue, origin)
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


def decode(data: bytes, what: str = "catalogue") -> CatalogueDocument:
    """Read hostile bytes. Raises InvalidInputError naming the first field that is wrong."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidInputError(what, f"{len(data)} bytes; at most {MAX_DOCUMENT_BYTES} are read")
    try:
        return CatalogueDocument.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or what
        raise InvalidInputError(field, f"{first['msg']} (got {str(first['input'])[:80]!r})") from error


def to_document(catalogue: Catalogue, origin: dict[str, str] | None = None) -> dict[str, Any]:
    """The catalogue as plain JSON values, sorted by name."""
    return {
        "format": "sluice-catalogue/1",
        **({"origin": origin} if origin else {}),
        "apps": [app_to_document(a) for _, a in sorted(catalogue.apps.items())],
        "variants": [variant_to_document(v) for _, v in sorted(catalogue.variants.items())],
        "profiles": [profile_to_document(p) for _, p in sorted(catalogue.profiles.items())],
    }


def from_document(document: CatalogueDocument) -> Catalogue:
    """Build the catalogue. Raises InvalidInputError for what single fields do not show: duplicates, dangling names."""
    _no_duplicates("apps", [a.name for a in document.apps])
    _no_duplicates("variants", [v.name for v in document.variants])
    _no_duplicates("profiles", [f"{p.variant}@{p.device_type}" for p in document.profiles])
    try:
        return Catalogue.of(
            [_app(a) for a in document.apps],
            [_variant(v) for v in document.variants],
            [_profile(p) for p in document.profiles],
        )
    except ConfigurationError as error:
        raise InvalidInputError("catalogue", str(error)) from error


def app_document(app: App) -> AppDocument:
    """``app`` as it is read back. Raises InvalidInputError where it would not be."""
    document = decode(encode(Catalogue.of([app], (), ())))
    from_document(document)
    return document.apps[0]


def app_to_document(app: App) -> dict[str, Any]:
    """Plain JSON values of one app."""
    return {
        "name": app.name,
        "slo_s": app.slo,
        "query_class": app.query_class.value,
        "min_accuracy": app.min_accuracy,
        "weight": app.weight,
        "max_consecutive": app.promise.max_consecutive,
        "weakly_hard": [{"m": w.m, "k": w.k} for w in app.promise.weakly_hard],
        "inputs": [_spec_to_document(s) for s in app.inputs],
        "outputs": [_spec_to_document(s) for s in app.outputs],
        "max_rows": app.max_rows,
    }


def variant_to_document(variant: Variant) -> dict[str, Any]:
    """Plain JSON values of one variant."""
    return {name: getattr(variant, name) for name in VariantDocument.model_fields}


def profile_to_document(profile: Profile) -> dict[str, Any]:
    """Plain JSON values of one profile."""
    document = {
        "variant": profile.variant,
        "device_type": profile.device_type,
        "points": _points_to_document(profile.points),
        "memory_bytes": profile.memory_bytes,
        "load_s": profile.load,
    }
    if profile.length:
        document["length"] = profile.length
        document["shorter"] = [
            {"length": each.length, "points": _points_to_document(each.points)} for each in profile.shorter
        ]
    if profile.fbr != 1.0:
        document["fbr"] = profile.fbr
    return document


def _points_to_document(points: tuple[BatchLatency, ...]) -> list[dict[str, Any]]:
    return [{"batch": p.batch, "median_s": p.median, "p95_s": p.p95, "cpu_s": p.cpu} for p in points]


def _canonical(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _no_duplicates(field: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInputError(field, f"{name!r} is listed twice; keep one")
        seen.add(name)


def _spec_to_document(spec: TensorSpec) -> dict[str, Any]:
    document = {"name": spec.name, "datatype": spec.datatype, "row_shape": list(spec.row_shape)}
    return {**document, "varying": True} if spec.varying else document


def _spec(app: str, document: TensorSpecDocument) -> TensorSpec:
    field = f"apps.{app}.{document.name}"
    if document.datatype not in DATATYPE_BYTES:
        raise InvalidInputError(f"{field}.datatype", f"{document.datatype!r}; one of {', '.join(DATATYPE_BYTES)}")
    if document.varying and not document.row_shape:
        raise InvalidInputError(f"{field}.varying", "but a row is one number; give its longest length in row_shape")
    if document.varying and document.datatype == BYTES:
        raise InvalidInputError(f"{field}.varying", "but texts are of any length anyway; leave it out")
    spec = TensorSpec(document.name, document.datatype, document.row_shape, document.varying)
    if spec.row_bytes > MAX_ROW_BYTES:
        raise InvalidInputError(f"{field}.row_shape", f"{spec.row_bytes} bytes a row; at most {MAX_ROW_BYTES}")
    return spec


def _app(document: AppDocument) -> App:
    promise = Promise(
        max_consecutive=document.max_consecutive,
        weakly_hard=tuple(WeaklyHard(w.m, w.k) for w in document.weakly_hard),
    )
    return App(
        name=document.name,
        slo=document.slo_s,
        query_class=QueryClass(document.query_class),
        min_accuracy=document.min_accuracy,
        weight=document.weight,
        promise=promise,
        inputs=tuple(_spec(document.name, s) for s in document.inputs),
        outputs=tuple(_spec(document.name, s) for s in document.outputs),
        max_rows=document.max_rows,
    )


def _variant(document: VariantDocument) -> Variant:
    # The only path there is: no other can be named, so none can climb out of the folder.
    expected = f"models/{document.digest}.onnx" if document.digest else ""
    if document.model != expected:
        raise InvalidInputError(
            f"variants.{document.name}.model", f"{document.model!r} is not {expected!r}, the path its digest gives"
        )
    return Variant(**document.model_dump())


def _profile(document: ProfileDocument) -> Profile:
    return Profile(
        variant=document.variant,
        device_type=document.device_type,
        points=_points(document.points),
        memory_bytes=document.memory_bytes,
        load=document.load_s,
        length=document.length,
        shorter=tuple(LengthPoints(each.length, _points(each.points)) for each in document.shorter),
        fbr=document.fbr,
    )


def _points(documents: tuple[PointDocument, ...]) -> tuple[BatchLatency, ...]:
    return tuple(BatchLatency(p.batch, p.median_s, p.p95_s, p.cpu_s) for p in documents)
