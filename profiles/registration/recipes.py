"""Ways to make another variant of a model: what may be tried, and how each is done to the graph.

Rules. Every recipe starts from the model as it was checked. A recipe that finds nothing to do in the graph says so and
yields nothing; one whose result is byte for byte another's is that one. Nothing is assumed of speed or accuracy: both
are measured afterwards, because an integer graph may be slower than the float one and may have lost its mind.
Runs in a child process (``sluicegate.executors.onnx.variant_child``): ONNX Runtime's tools run the model while they
work.
"""

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from sluicegate.domain.errors import SluiceError
from sluicegate.profiles.registration.lowering import lower_linear
from sluicegate.profiles.registration.validation_set import Array

ORIGINAL = "fp32"
"""The model as registered."""
_QUANTISABLE = ("MatMul", "Gemm", "Conv")
_CALIBRATION_BATCH = 16
_PER_CHANNEL_OPSET = 13


class NotApplicableError(SluiceError):
    """A recipe has nothing to do for this model; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A checked model and rows to calibrate with: inputs by name, each [k, *row shape]."""

    model: onnx.ModelProto
    calibration: Mapping[str, Array]


def make(recipe: str, source: Source) -> bytes:
    """The model that ``recipe`` makes of ``source``. Raises NotApplicableError, or whatever the tools raise."""
    logging.getLogger().setLevel(logging.ERROR)  # the tools advise at every call
    return RECIPES[recipe](source)


def _original(source: Source) -> bytes:
    return _bytes(source.model)


def _optimised(source: Source) -> bytes:
    """Constants folded, operators fused; no layout of one processor, so that the file serves on any."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimised.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 4
        ort.InferenceSession(_bytes(source.model), options, providers=["CPUExecutionProvider"])
        return _bytes(onnx.load(target))


def _plain(source: Source) -> bytes:
    """Linear models of the machine-learning operator set as matrix products."""
    model, changed = _lowered(source.model)
    if not changed:
        raise NotApplicableError("no linear model of the ai.onnx.ml operators to rewrite")
    return _bytes(model)


def _lowered(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy, lower_linear(copy)


def _fp16(source: Source) -> bytes:
    """Weights and arithmetic in half precision; inputs and outputs stay as they are."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model, _ = _lowered(source.model)
    if not any(t.data_type == TensorProto.FLOAT and t.dims for t in model.graph.initializer):
        raise NotApplicableError("no float32 weights to halve")
    converted = convert_float_to_float16(model, keep_io_types=True, op_block_list=_BLOCKED)
    return _bytes(converted)


_BLOCKED = [
    "ArrayFeatureExtractor", "Binarizer", "CategoryMapper", "DictVectorizer", "FeatureVectorizer", "Imputer",
    "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder", "RandomUniformLike",
    "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap",
    "NonMaxSuppression", "TopK", "RoiAlign", "Resize", "Range", "CumSum", "Min", "Max", "Upsample", "ArgMax",
]  # fmt: skip


def _int8_dynamic(source: Source) -> bytes:
    """Integer weights; the range of activations is measured at every run, a tensor at a time."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        before, after = _prepared(source.model, Path(folder))
        quantize_dynamic(
            before, after, weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": TensorProto.FLOAT}
        )
        return _bytes(onnx.load(after))


def _int8_static(source: Source) -> bytes:
    return _static(source, per_channel=False)


def _int8_static_channel(source: Source) -> bytes:
    opset = max((o.version for o in source.model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    if opset < _PER_CHANNEL_OPSET:
        raise NotApplicableError(f"scales a channel need opset {_PER_CHANNEL_OPSET}; the model has {opset}")
    return _static(source, per_channel=True)


def _static(source: Source, *, per_channel: bool) -> bytes:
    """Integer weights and activations, whose ranges are those that the calibration rows reach."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        before, after = _prepared(source.model, Path(folder))
        quantize_static(
            before,
            after,
            _Calibration(source.calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # ONNX Runtime's widening of weight scales for biases fails on scales a channel.
            extra_options={
                "QDQDisableWeightAdjustForInt32Bias": per_channel,
                "DefaultTensorType": TensorProto.FLOAT,
            },
        )
        return _bytes(onnx.load(after))


def _half_the_trees(source: Source) -> bytes:
    return _fewer_trees(source.model, 2)


def _eighth_of_the_trees(source: Source) -> bytes:
    return _fewer_trees(source.model, 8)


RECIPES: Mapping[str, Callable[[Source], bytes]] = {
    ORIGINAL: _original,
    "optimised": _optimised,
    "plain": _plain,
    "fp16": _fp16,
    "int8-dynamic": _int8_dynamic,
    "int8-static": _int8_static,
    "int8-static-channel": _int8_static_channel,
    "trees-half": _half_the_trees,
    "trees-eighth": _eighth_of_the_trees,
}
"""Name -> how. The order is that of preference where two are not told apart: what changes least comes first."""


class _Calibration:
    """Rows in batches, as ONNX Runtime's calibrator asks for them."""

    def __init__(self, rows: Mapping[str, Array]) -> None:
        count = len(next(iter(rows.values())))
        self._batches = iter(
            [
                {name: a[start : start + _CALIBRATION_BATCH] for name, a in rows.items()}
                for start in range(0, count, _CALIBRATION_BATCH)
            ]
        )

    def get_next(self) -> dict[str, Array] | None:
        """The next batch by input name, None after the last."""
        return next(self._batches, None)


def _needs_quantisable(model: onnx.ModelProto) -> None:
    floats = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    if not any(
        node.op_type in _QUANTISABLE or (node.op_type == "Gather" and node.input[0] in floats)
        for node in model.graph.node
    ):
        raise NotApplicableError(f"nothing to quantise: it has no {', '.join(_QUANTISABLE)}, nor a table of weights")


def _prepared(model: onnx.ModelProto, folder: Path) -> tuple[Path, Path]:
    """A file with fused operators and inferred shapes, which quantisation wants, and the path for its result."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, _ = _lowered(model)
    _needs_quantisable(model)
    raw, before = folder / "raw.onnx", folder / "before.onnx"
    raw.write_bytes(_bytes(model))
    quant_pre_process(str(raw), str(before), skip_symbolic_shape=True)
    return before, folder / "after.onnx"


def _fewer_trees(model: onnx.ModelProto, divisor: int) -> bytes:
    """The first 1/``divisor`` of an ensemble's trees, their votes scaled up to the whole's."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    found = False
    for node in changed.graph.node:
        if node.op_type in ("TreeEnsembleClassifier", "TreeEnsembleRegressor") and node.domain == "ai.onnx.ml":
            found = _thin(node, divisor) or found
    if not found:
        raise NotApplicableError("no ensemble of enough trees")
    return _bytes(changed)


def _thin(node: onnx.NodeProto, divisor: int) -> bool:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    trees = sorted(set(attributes["nodes_treeids"]))
    kept = set(trees[: len(trees) // divisor])
    if not kept or len(trees) < 2 * divisor:
        return False
    scale = len(trees) / len(kept) if not attributes.get("base_values") else 1.0
    thinned: dict[str, Any] = dict(attributes)
    for prefix in ("nodes", "class", "target"):
        ids = attributes.get(f"{prefix}_treeids")
        if ids is None:
            continue
        rows = [i for i, tree in enumerate(ids) if tree in kept]
        for name, values in attributes.items():
            if name.startswith(f"{prefix}_") and isinstance(values, Sequence) and len(values) == len(ids):
                picked = [values[i] for i in rows]
                is_weight = name in ("class_weights", "target_weights")
                thinned[name] = [scale * value for value in picked] if is_weight else picked
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, value) for name, value in thinned.items())
    return True


def _bytes(model: onnx.ModelProto) -> bytes:
    data: bytes = model.SerializeToString(deterministic=True)
    return data
