"""Reading and writing profiles: our own folder, and the papers' formats. Everything read is hostile."""

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App, Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import (
    digest_of,
    load_catalogue,
    load_origin,
    model_path,
    read_model,
    save_catalogue,
)
from sluicegate.profiles.formats.catalogue_json import MAX_DOCUMENT_BYTES, encode, fingerprint
from sluicegate.profiles.formats.proteus_csv import load_proteus
from sluicegate.profiles.formats.ramsis_json import load_ramsis

MODEL = b"not really a graph, but bytes with a digest"
DIGEST = digest_of(MODEL)


def small_catalogue(reverse: bool = False) -> Catalogue:
    """Two apps, one variant with a model and one that is a profile only."""
    apps = [
        App(
            name="digits",
            slo=0.1,
            query_class=QueryClass.BEST_EFFORT,
            min_accuracy=0.5,
            promise=Promise(max_consecutive=2, weakly_hard=(WeaklyHard(1, 10),)),
            inputs=(TensorSpec("image", "FP32", (28, 28)),),
            outputs=(TensorSpec("label", "INT64", ()),),
            max_rows=4,
        ),
        App(name="text", slo=0.3),
    ]
    variants = [
        Variant(
            name="lin49", app="digits", accuracy=0.8, accuracy_se=0.01, family="lin",
            model=model_path(DIGEST), digest=DIGEST, size_bytes=len(MODEL),
        ),
        Variant(name="organisation/bert", app="text", accuracy=0.9, nominal=True),
    ]  # fmt: skip
    points = (BatchLatency(1, 0.001, 0.002, 0.0005), BatchLatency(8, 0.004, 0.006))
    profiles = [
        Profile(variant="lin49", device_type="cpu", points=points, memory_bytes=1000, load=0.2),
        Profile(variant="organisation/bert", device_type="cpu", points=points),
    ]
    if reverse:
        apps, variants, profiles = apps[::-1], variants[::-1], profiles[::-1]
    return Catalogue.of(apps, variants, profiles)


def saved(folder: Path) -> Path:
    save_catalogue(folder, small_catalogue(), {DIGEST: MODEL}, {"machine": "a machine"})
    return folder


def edited(folder: Path, *path: str | int, value: Any) -> None:
    """Change one value of the saved document."""
    file = folder / "catalogue.json"
    document = orjson.loads(file.read_bytes())
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    file.write_bytes(orjson.dumps(document))


def test_a_saved_catalogue_is_read_back_equal(tmp_path: Path) -> None:
    loaded = load_catalogue(saved(tmp_path))
    assert loaded == small_catalogue()
    assert read_model(tmp_path, loaded.variants["lin49"]) == MODEL
    assert load_origin(tmp_path) == {"machine": "a machine"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["catalogue.json", "models"]


def test_the_fingerprint_depends_on_content_alone() -> None:
    catalogue = small_catalogue()
    assert fingerprint(catalogue) == fingerprint(small_catalogue(reverse=True))
    slower = Catalogue.of(catalogue.apps.values(), catalogue.variants.values(), [])
    assert fingerprint(slower) != fingerprint(catalogue)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("surprise",), 1, "surprise"),
        (("format",), "sluice-catalogue/9", "format"),
        (("apps", 0, "slo_s"), -1.0, "apps.0.slo_s"),
        (("apps", 0, "slo_s"), "0.1", "apps.0.slo_s"),
        (("apps", 0, "name"), "a.b/../c", "apps.0.name"),
        (("apps", 0, "max_rows"), 10**9, "apps.0.max_rows"),
        (("apps", 0, "inputs", 0, "datatype"), "FP13", "apps.digits.image.datatype"),
        (("apps", 0, "inputs", 0, "row_shape"), [1 << 20, 1 << 20], "apps.digits.image.row_shape"),
        (("variants", 0, "accuracy"), 80.0, "variants.0.accuracy"),
        (("variants", 0, "model"), "../../etc/passwd", "variants.lin49.model"),
        (("variants", 0, "model"), "/etc/passwd", "variants.lin49.model"),
        (("variants", 0, "digest"), "ff", "variants.0.digest"),
        (("variants", 0, "size_bytes"), 3, "variants.lin49.model"),
        (("variants", 1, "name"), "../bert", "variants.1.name"),
        (("variants", 1, "name"), "lin49", "variants"),
        (("variants", 1, "app"), "nowhere", "catalogue"),
        (("profiles", 0, "points", 0, "p95_s"), 0.0, "profiles.0.points.0.p95_s"),
        (("profiles", 0, "points", 1, "p95_s"), 0.0029, "profiles.0.points.1"),
        (("apps", 0, "weakly_hard"), [{"m": 3, "k": 3}], "apps.0.weakly_hard.0"),
        (("profiles", 0, "points", 0, "batch"), 10**9, "profiles.0.points.0.batch"),
        (("profiles", 0, "points", 0, "batch"), 8, "points.batch"),
        (("profiles", 0, "points"), [], "profiles.0.points"),
    ],
)
def test_a_hostile_document_is_refused_by_field(
    tmp_path: Path, path: tuple[str | int, ...], value: Any, field: str
) -> None:
    edited(saved(tmp_path), *path, value=value)
    with pytest.raises(InvalidInputError) as caught:
        load_catalogue(tmp_path)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 100_000, b'{"apps": NaN}', b"\xff\xfe", b"null", b" " * (MAX_DOCUMENT_BYTES + 1)],
    ids=["empty", "cut", "nested", "nan", "not utf-8", "null", "huge"],
)
def test_what_is_not_a_catalogue_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "catalogue.json").write_bytes(data)
    with pytest.raises(InvalidInputError):
        load_catalogue(tmp_path)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "catalogue.json"
    for number in (b"NaN", b"Infinity", b"1e999"):
        file.write_bytes(encode(small_catalogue()).replace(b'"median_s": 0.001', b'"median_s": ' + number))
        with pytest.raises(InvalidInputError):
            load_catalogue(tmp_path)


def test_a_missing_catalogue_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no catalogue in .*build one first"):
        load_catalogue(tmp_path / "nowhere")
    assert load_origin(tmp_path) == {}


def test_a_model_that_was_changed_swapped_or_removed_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path) / model_path(DIGEST)
    path.write_bytes(MODEL[:-1] + b"!")
    with pytest.raises(InvalidInputError, match="SHA-256"):
        load_catalogue(tmp_path)
    assert load_catalogue(tmp_path, verify=False) == small_catalogue()
    path.unlink()
    with pytest.raises(InvalidInputError, match="not a plain file"):
        load_catalogue(tmp_path)
    outside = tmp_path / "outside"
    outside.write_bytes(MODEL)
    path.symlink_to(outside)
    with pytest.raises(InvalidInputError, match="not a plain file"):
        load_catalogue(tmp_path)


def test_saving_a_variant_without_its_model_leaves_the_old_catalogue(tmp_path: Path) -> None:
    saved(tmp_path)
    before = (tmp_path / "catalogue.json").read_bytes()
    (tmp_path / model_path(DIGEST)).unlink()
    with pytest.raises(InvalidInputError):
        save_catalogue(tmp_path, small_catalogue(), {})
    with pytest.raises(InvalidInputError):
        save_catalogue(tmp_path, small_catalogue(), {DIGEST: b"other bytes"})
    assert (tmp_path / "catalogue.json").read_bytes() == before


def test_the_folder_of_proteus_is_read_whole(sluice_data: Path) -> None:
    catalogue = load_proteus(sluice_data / "proteus")
    assert len(catalogue.apps) == 9
    assert len(catalogue.variants) == 46
    assert catalogue.device_types == ("ampere", "cpu", "pascal")
    best = catalogue.of_app("resnet")[0]
    assert (best.name, best.accuracy) == ("resnet152_v1", 1.0)
    assert catalogue.variants["yolov5n"].accuracy == pytest.approx(0.5522682446)
    profile = catalogue.profiles["roberta-base", "pascal"]
    assert [p.batch for p in profile.points] == [1, 2, 4, 8, 16]
    assert profile.points[0].median == pytest.approx(0.01030421257)
    assert profile.points[0].p95 == pytest.approx(0.010997533798)
    assert all(p.median <= p.p95 for profile in catalogue.profiles.values() for p in profile.points)


def test_proteus_can_be_limited_in_batch_sizes_families_slos_and_list(sluice_data: Path) -> None:
    folder = sluice_data / "proteus"
    few = load_proteus(folder, batch_sizes=(1, 2, 4, 8), families=["bert", "t5"], slo="1x")
    assert list(few.apps) == ["bert", "t5"]
    assert few.apps["bert"].slo == pytest.approx(0.075)
    assert {p.max_batch for p in few.profiles.values()} == {8}
    cheapest = load_proteus(folder, variants="model_variants_clipper_lowacc", slo={"bert": 1.0}, families=["bert"])
    assert list(cheapest.variants) == ["prajjwal1/bert-tiny"]
    with pytest.raises(InvalidInputError, match="families"):
        load_proteus(folder, families=["nonesuch"])
    with pytest.raises(InvalidInputError, match="multiple"):
        load_proteus(folder, slo="17x")


def proteus_folder(folder: Path, rows: str, variants: str = "fast,90.5\nslow,100\n") -> Path:
    """A folder in the format, with made-up numbers."""
    (folder / "variants" / "model_variants").mkdir(parents=True)
    (folder / "variants" / "model_variants" / "family").write_text(variants)
    header = "Model,Accel,Trials,batchsize,50th_pct,90th_pct,avg_latency(ms),Min,Max,Accuracy,Normalized_Accuracy\n"
    (folder / "aggregate_profiled.csv.gz").write_bytes(gzip.compress((header + rows).encode()))
    return folder


GOOD = "fast,onnxruntime_cpu,9,1,2.0,3.0,2,1,9,70,90.5\nslow,onnxruntime_cpu,9,1,20.0,,20,1,90,75,100\n"


def test_a_missing_90th_percentile_falls_back_on_the_median_and_the_later_row_counts(tmp_path: Path) -> None:
    folder = proteus_folder(tmp_path, GOOD + "fast,onnxruntime_cpu,9,1,4.0,5.0,4,1,9,70,90.5\n")
    catalogue = load_proteus(folder)
    assert catalogue.profiles["slow", "cpu"].points == (BatchLatency(1, 0.02, 0.02),)
    assert catalogue.profiles["fast", "cpu"].points == (BatchLatency(1, 0.004, 0.005),)


@pytest.mark.parametrize(
    ("rows", "variants"),
    [
        (GOOD.replace("2.0", "nan"), "fast,90.5\n"),
        (GOOD.replace("2.0", "-2"), "fast,90.5\n"),
        (GOOD.replace(",1,2.0", ",one,2.0"), "fast,90.5\n"),
        (GOOD, "fast,101\n"),
        (GOOD, "fast\n"),
        (GOOD, "unmeasured,50\n"),
    ],
)
def test_malformed_proteus_tables_are_refused(tmp_path: Path, rows: str, variants: str) -> None:
    with pytest.raises(InvalidInputError):
        load_proteus(proteus_folder(tmp_path, rows, variants))


def test_a_truncated_or_absent_proteus_table_is_a_clear_error(tmp_path: Path) -> None:
    folder = proteus_folder(tmp_path, GOOD)
    table = folder / "aggregate_profiled.csv.gz"
    table.write_bytes(table.read_bytes()[:-12])
    with pytest.raises(ConfigurationError, match="aggregate_profiled"):
        load_proteus(folder)
    table.write_bytes(gzip.compress(GOOD.encode())[:10] + b"\xff" * 40)
    with pytest.raises(ConfigurationError, match="aggregate_profiled"):
        load_proteus(folder)
    with pytest.raises(ConfigurationError, match="Proteus"):
        load_proteus(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("multiple,slo_ms\n1x,300\n", "has no column 'family'"),
        ("family,multiple\nfamily,1x\n", "has no column 'slo_ms'"),
        ("family,multiple,slo_ms\n" + "f" * 140_000 + ",1x,300\n", "is no table"),
    ],
)
def test_slos_of_proteus_that_are_no_table_of_them_are_refused(tmp_path: Path, text: str, told: str) -> None:
    folder = proteus_folder(tmp_path, GOOD)
    (folder / "slo_by_multiple.csv").write_text(text)
    with pytest.raises(InvalidInputError, match=told):
        load_proteus(folder, slo="1x")


def test_the_profiles_of_ramsis_are_read(sluice_data: Path) -> None:
    catalogue = load_ramsis(sluice_data / "ramsis")
    assert list(catalogue.apps) == ["image", "text"]
    assert catalogue.of_app("text")[0].name == "bert_base"
    assert len(catalogue.of_app("image")) == 9
    assert catalogue.variants["efficientnet_b0"].accuracy == pytest.approx(0.77692)
    point = catalogue.profiles["efficientnet_b0", "cpu4"].points[0]
    assert (point.median, point.p95) == pytest.approx((0.044261, 0.054109))
    assert len(load_ramsis(sluice_data / "ramsis", tasks=["image"], models="all").variants) == 26


def test_the_artifacts_table_of_ramsis_is_monotone_and_covers_every_batch(sluice_data: Path) -> None:
    catalogue = load_ramsis(sluice_data / "ramsis", table="artifact")
    for profile in catalogue.profiles.values():
        curve = profile.curve("p95")
        assert curve.max_batch == 32
        assert list(curve.seconds) == sorted(curve.seconds)
    assert catalogue.profiles["shufflenet_v2_x0_5", "cpu4"].points[0].p95 == pytest.approx(0.021921003)


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"format": "ramsis-profiles/1", "tasks": {}}'])
def test_malformed_ramsis_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError):
        load_ramsis(path)
    with pytest.raises(ConfigurationError):
        load_ramsis(tmp_path / "other.json")
