"""A model of texts, as ONNX Runtime runs them: looks words up, names their kind, and says them again."""

from pathlib import Path

import onnx
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import BYTES, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, model_path, save_catalogue

KINDS = ("unknown", "animal", "a plant, or Gemüse")
KIND_OF = {"cat": 1, "a very long name of a dog": 1, "Öl": 2, "": 2}
APP = App(
    name="words",
    slo=0.1,
    inputs=(TensorSpec("pair", BYTES, (2,)), TensorSpec("weight", "FP32", ()), TensorSpec("note", BYTES, ())),
    outputs=(TensorSpec("kind", BYTES, (2,)), TensorSpec("number", "INT64", (2,)), TensorSpec("said", BYTES, ())),
)


def lookup() -> onnx.ModelProto:
    """kind = KINDS[KIND_OF[pair]], number that of it, said = note."""
    nodes = [
        h.make_node(
            "LabelEncoder", ["pair"], ["number"], domain="ai.onnx.ml",
            keys_strings=list(KIND_OF), values_int64s=list(KIND_OF.values()), default_int64=0,
        ),
        h.make_node(
            "LabelEncoder", ["number"], ["kind"], domain="ai.onnx.ml",
            keys_int64s=list(range(len(KINDS))), values_strings=list(KINDS), default_string="?",
        ),
        h.make_node("Identity", ["note"], ["said"]),
        h.make_node("Identity", ["weight"], ["unused"]),
    ]  # fmt: skip
    values = h.make_tensor_value_info
    graph = h.make_graph(
        nodes,
        "words",
        [values("pair", T.STRING, ["n", 2]), values("weight", T.FLOAT, ["n"]), values("note", T.STRING, ["n"])],
        [values("kind", T.STRING, ["n", 2]), values("number", T.INT64, ["n", 2]), values("said", T.STRING, ["n"])],
    )
    opsets = [h.make_opsetid("", 17), h.make_opsetid("ai.onnx.ml", 2)]
    model = h.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model


def write_words(folder: Path) -> Catalogue:
    """A catalogue of the app in ``folder``."""
    model = lookup().SerializeToString()
    digest = digest_of(model)
    variant = Variant(name="lookup", app="words", accuracy=0.9, model=model_path(digest), digest=digest)
    points = (BatchLatency(1, 0.001, 0.002), BatchLatency(8, 0.002, 0.003))
    catalogue = Catalogue.of([APP], [variant], [Profile(variant="lookup", device_type="cpu", points=points, load=0.01)])
    save_catalogue(folder, catalogue, {digest: model})
    return catalogue
