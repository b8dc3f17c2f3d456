"""``sluice devices`` on fake GPUs."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.sluice.commands import devices

app = typer.Typer()
devices.register(app)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["devices", *arguments])
    return result.exit_code, result.output


def test_list_names_every_gpu_and_what_it_could_be_cut_into() -> None:
    code, text = run("list", "--fake-gpu", "a100x8", "--json")
    gpus = json.loads(text)["gpus"]
    assert (code, len(gpus)) == (0, 8)
    assert len(gpus[0]["geometries"]) == 12
    assert {p["name"]: p["starts"] for p in gpus[0]["profiles"]}["2g"] == [0, 2, 4]
    assert "A100" in run("list", "--fake-gpu", "a100x2")[1]


def test_a_dry_run_lists_steps_and_applies_nothing() -> None:
    for command in (("plan",), ("apply", "--dry-run")):
        code, text = run(*command, "--geometry", "4g+2g+1g", "--fake-gpu", "a100x8", "--json")
        answer = json.loads(text)
        assert (code, answer["applied"], len(answer["steps"])) == (0, False, 24)
        assert answer["steps"][0] == "GPU 0: create 4g at slot 0"


def test_apply_cuts_each_gpu_as_asked() -> None:
    code, text = run("apply", "--geometry", "0=4g+3g,1=1gx7", "--fake-gpu", "a100x2", "--json")
    assert code == 0
    assert [g["geometry"] for g in json.loads(text)["gpus"]] == [["4g", "3g"], ["1g"] * 7]


def test_of_what_is_asked_for_only_the_named_gpus_are_cut() -> None:
    code, text = run("plan", "--geometry", "0=7g,1=4g+3g", "--gpu", "1", "--fake-gpu", "a100x2", "--json")
    assert (code, {step.partition(":")[0] for step in json.loads(text)["steps"]}) == (0, {"GPU 1"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--geometry", "4g+4g", "--fake-gpu", "a100x1"),
        ("plan", "--geometry", "5=7g", "--fake-gpu", "a100x1"),
        ("plan", "--geometry", "x=7g", "--fake-gpu", "a100x1"),
        ("apply", "--geometry", "0=7g,0=4g+3g", "--fake-gpu", "a100x1"),
        ("plan", "--geometry", "7g", "--gpu", "3", "--fake-gpu", "a100x1"),
        ("plan", "--geometry", "0=4g+3g", "--gpu", "1", "--fake-gpu", "a100x2"),
        ("apply", "--geometry", "0=4g+3g", "--gpu", "0", "--gpu", "1", "--fake-gpu", "a100x2"),
        ("list", "--fake-gpu", "tpu"),
        ("bandwidth", "--app", "digits", "--gpu", "MIG-../x"),
        ("bandwidth", "--app", "digits", "--cores", "0,x"),
        ("bandwidth", "--app", "digits", "--cores", "100000"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert text.startswith("error ")
    assert text.count("\n") == 1
