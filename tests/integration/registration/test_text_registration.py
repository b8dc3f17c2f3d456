"""Models of texts, registered as a user would: texts in, names of classes out; and what cannot be, refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import BYTES, elements
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.load.sample_inputs import app_samples
from sluicegate.sluice.registration.register import register
from tests.models.registration_models import model_of, request_of, write_model, write_rows

WORDS = {"cat": "animal", "a dog": "animal", "Öl": "plant", "oak tree": "plant", "": "nothing"}


def named(default: str = "?") -> Any:
    """What a word is."""
    node = h.make_node(
        "LabelEncoder", ["word"], ["kind"], domain="ai.onnx.ml",
        keys_strings=list(WORDS), values_strings=list(WORDS.values()), default_string=default,
    )  # fmt: skip
    model = model_of(
        [node],
        inputs=[h.make_tensor_value_info("word", T.STRING, ["n"])],
        outputs=[h.make_tensor_value_info("kind", T.STRING, ["n"])],
    )
    model.opset_import.append(h.make_opsetid("ai.onnx.ml", 2))
    return model


def rows_of(count: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Words, and what they are; one in ten is not known to the model."""
    words = (list(WORDS) * count)[:count]
    truth = [WORDS[word] for word in words]
    words[::10] = ["unheard of"] * len(words[::10])
    return np.array(words), np.array(truth)


def test_a_model_from_texts_to_names_is_registered_and_its_samples_are_texts(tmp_path: Path) -> None:
    words, truth = rows_of()
    rows = write_rows(tmp_path, word=words, label=truth)
    record = register(request_of(write_model(tmp_path, named()), rows), tmp_path / "home").record
    assert (record.answer_output, record.answer_reading) == ("kind", "text")
    assert [(s.name, s.datatype, s.row_shape) for s in record.app.inputs] == [("word", BYTES, ())]
    assert [(s.name, s.datatype) for s in record.app.outputs] == [("kind", BYTES)]
    best = max(c.variant.accuracy for c in record.candidates)
    assert 0.8 < best < 1.0 and record.chance < 0.5
    catalogue = Registered(tmp_path / "home").catalogue()
    assert catalogue is not None
    samples = app_samples(catalogue.apps["mine"], tmp_path / "home", rows=2)
    found = [elements(query[0].data, 2) for query in samples.inputs]
    assert {word for pair in found for word in pair} <= {word.encode() for word in words} and samples.labels is None


def test_the_same_rows_have_the_same_digest_and_other_texts_another(tmp_path: Path) -> None:
    words, truth = rows_of()
    model = write_model(tmp_path, named())
    keys = []
    for name, given in (("a.npz", words), ("b.npz", words), ("c.npz", np.char.replace(words, "cat", "dog"))):
        record = register(request_of(model, write_rows(tmp_path, name, word=given, label=truth)), tmp_path / name[0])
        keys.append(record.record.validation_digest)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("arrays", "changes", "problem"),
    [
        ({"word": np.arange(60.0)}, {}, "give texts"),
        ({"word": np.array([b"\xff\xfe"] * 60)}, {}, "no UTF-8"),
        ({"label": np.arange(60) % 5}, {}, "no class a row"),
        ({}, {"varying": ("word",)}, "of any length"),
        ({}, {"make_family": True}, "takes texts"),
        ({}, {"metric": "r2"}, "r2 is of numbers"),
        ({"label": np.array(["other"] * 30 + ["names"] * 30)}, {}, "no true answer"),
    ],
)
def test_what_does_not_fit_is_refused(
    arrays: dict[str, Any], changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    words, truth = rows_of()
    rows = write_rows(tmp_path, **{"word": words, "label": truth, **arrays})
    with pytest.raises(InvalidInputError, match=problem):
        register(request_of(write_model(tmp_path, named()), rows, **changes), tmp_path / "home")
