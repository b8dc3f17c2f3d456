"""What is shown of a registration's candidates: of the device type that they were measured on, and of none."""

from rich.console import Console

from sluicegate.profiles.catalogue.registered_apps import CandidateDocument, Record, SpreadDocument
from sluicegate.profiles.formats.catalogue_json import AppDocument, PointDocument, ProfileDocument, VariantDocument
from sluicegate.sluice.commands.models.register import candidate_table
from sluicegate.sluice.commands.models.variants import candidate_rows


def candidate(recipe: str, *seconds: tuple[str, float], served: bool = True) -> CandidateDocument:
    """One that took so long on these device types."""
    name = f"cats.v1.{recipe}"
    return CandidateDocument(
        variant=VariantDocument(name=name, app="cats", accuracy=0.5),
        recipe=recipe,
        gap=0.0,
        gap_se=0.0,
        finite=True,
        served=served,
        reason="" if served else "cannot be loaded on cuda",
        profiles=tuple(
            ProfileDocument(
                variant=name, device_type=kind, points=(PointDocument(batch=1, median_s=took, p95_s=2 * took),)
            )
            for kind, took in seconds
        ),
        # As it is read back: by name.
        spreads={
            kind: (SpreadDocument(batch=1, median_s=took, low_s=took, high_s=took, samples=9),)
            for kind, took in sorted(seconds)
        },
    )


def record(*candidates: CandidateDocument) -> Record:
    return Record(
        app=AppDocument(name="cats", slo_s=0.1), version=1, key="", metric="accuracy", chance=0.1, answer_output="",
        answer_reading="label", scored_rows=30, calibration_rows=0, source="", source_digest="", validation_digest="",
        registered_at=1.0, machine="", notes=(), candidates=candidates, skipped={},
    )  # fmt: skip


def test_one_that_could_be_loaded_nowhere_is_shown_without_figures() -> None:
    found = record(candidate("fp32", ("cuda", 0.25)), candidate("int8-static", served=False))
    first, second = candidate_rows(found)
    assert (first["device_type"], first["latency_ms"]) == ("cuda", {"1": 250.0})
    assert (second["device_type"], second["latency_ms"], second["load_ms"]) == (None, {}, None)
    assert first.keys() == second.keys()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(candidate_table(found))
    shown = next(line for line in captured.get().splitlines() if "int8-static" in line)
    assert shown.split() == ["int8-static", "50.0", "±0.0", "-", "-", "-", "-", "no"]


def test_the_interval_of_a_latency_is_of_the_same_device_type() -> None:
    (row,) = candidate_rows(record(candidate("fp32", ("cpu2", 0.25), ("cpu16", 0.125))))
    assert (row["device_type"], row["latency_ms"], row["latency_ms_95"]) == ("cpu2", {"1": 250.0}, {"1": [250.0] * 2})
