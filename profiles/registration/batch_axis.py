"""What a model takes and gives, and its batch axis, made free where it is fixed.

Rules. Axis 0 of every input and output is the batch. Where it is fixed at 1 (or any extent common to all inputs) it is
declared free, and constants that spell that extent out in a Reshape are told to copy it instead; whether batches then
answer as single rows do is not assumed but run (see ``executors.evaluation.check_batches``). Outputs that cannot be
sent (maps, sequences) are left out; those of a classifier's ZipMap give way to the probabilities behind them. Constants
that are also listed as inputs are constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import BYTES
from sluicegate.profiles.registration.model_checks import FIELD

DATATYPES = {
    TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8", TensorProto.INT8: "INT8", TensorProto.UINT16: "UINT16",
    TensorProto.INT16: "INT16", TensorProto.FLOAT16: "FP16", TensorProto.UINT32: "UINT32", TensorProto.INT32: "INT32",
    TensorProto.FLOAT: "FP32", TensorProto.UINT64: "UINT64", TensorProto.INT64: "INT64", TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "BYTES",
}  # fmt: skip
"""ONNX element type -> Open Inference Protocol datatype."""
BATCH = "n"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. ``row_shape``: extents after the batch axis, None where the model leaves them free."""

    name: str
    datatype: str
    row_shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs and outputs that can be served, and what had to be changed for it.

    ``fixed_batch``: extent at which the batch axis was fixed, None where it was free.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    notes: tuple[str, ...] = ()
    fixed_batch: int | None = None


def check_varying(names: Sequence[str], inputs: Sequence[Port]) -> None:
    """Raise InvalidInputError unless each of ``names`` is an input whose rows may have any length."""
    ports = {port.name: port for port in inputs}
    for name in names:
        if name not in ports:
            raise InvalidInputError("varying", f"{name[:80]!r} is no input; the inputs are {', '.join(ports)[:200]}")
        if ports[name].datatype == BYTES:
            raise InvalidInputError("varying", f"{name[:80]!r} takes texts, which are of any length; leave it out")
        row_shape = ports[name].row_shape
        if not row_shape or row_shape[0] is not None:
            is_fixed = f"its rows to a length of {row_shape[0]}" if row_shape else "a row to one number"
            raise InvalidInputError("varying", f"the model fixes {is_fixed} ({name[:80]}); export it with a free axis")


def open_interface(model: onnx.ModelProto) -> Interface:
    """Make ``model`` serve batches, in place, and say what it takes and gives. Raises InvalidInputError."""
    notes = [*_drop_initialised_inputs(model.graph), *_strip_zipmaps(model.graph)]
    notes += _keep_outputs(model.graph)
    for value in model.graph.input:
        _check_port(value)
    fixed = {_extents(value)[0] for value in model.graph.input} - {None}
    if len(fixed) > 1:
        raise InvalidInputError(
            FIELD, f"fixes different batch sizes at its inputs ({sorted(fixed, key=str)}); export a free batch axis"
        )
    if fixed:
        (extent,) = fixed
        assert extent is not None  # None was taken out above
        _free(model.graph, extent)
        notes.append(f"the batch axis was fixed at {extent} and is free now")
    return Interface(
        tuple(_port(value) for value in model.graph.input),
        tuple(_port(value) for value in model.graph.output),
        tuple(notes),
        next(iter(fixed), None),
    )


def _drop_initialised_inputs(graph: onnx.GraphProto) -> list[str]:
    constants = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in constants]
    dropped = len(graph.input) - len(kept)
    if dropped:
        del graph.input[:]
        graph.input.extend(kept)
    if not kept:
        raise InvalidInputError(FIELD, "takes no input; a served model answers something")
    return [f"{dropped} constants were listed as inputs and are constants now"] if dropped else []


def _strip_zipmaps(graph: onnx.GraphProto) -> list[str]:
    notes = []
    for node in [n for n in graph.node if n.op_type == "ZipMap"]:
        outputs = [o for o in graph.output if o.name in node.output]
        if not outputs:
            continue
        known = {v.name: v for v in graph.value_info}.get(node.input[0])
        outputs[0].CopyFrom(
            known or onnx.helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, [BATCH, None])
        )
        graph.node.remove(node)
        notes.append(f"the map {node.output[0]!r} gave way to the probabilities {node.input[0]!r} it was made of")
    return notes


def _keep_outputs(graph: onnx.GraphProto) -> list[str]:
    kept: list[onnx.ValueInfoProto] = []
    left_out: list[onnx.ValueInfoProto] = []
    for value in graph.output:
        sendable = value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in DATATYPES
        (kept if sendable and len(_extents(value)) > 0 else left_out).append(value)
    if not kept:
        names = ", ".join(repr(v.name[:60]) for v in left_out) or "none"
        raise InvalidInputError(FIELD, f"gives no numbers or texts a row (it gives {names}); export scores or labels")
    del graph.output[:]
    graph.output.extend(kept)
    return [f"output {value.name[:60]!r} cannot be sent and is left out" for value in left_out]


def _check_port(value: onnx.ValueInfoProto) -> None:
    name = value.name[:80]
    kind = value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0
    if kind not in DATATYPES:
        names = {number: told for told, number in TensorProto.DataType.items()}
        told = names.get(kind, f"of a kind ({kind}) that ONNX does not know") if kind else "no tensor"
        raise InvalidInputError(FIELD, f"input {name!r} is {told}; numbers, booleans and texts can be served")
    if not value.type.tensor_type.HasField("shape") or not _extents(value):
        raise InvalidInputError(FIELD, f"input {name!r} has no batch axis; export it with one, free, in front")
    if any(extent == 0 for extent in _extents(value)):
        raise InvalidInputError(FIELD, f"input {name!r} has an axis of extent 0; export it again")


def _extents(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    """Extents, None where free. An output of unknown shape counts as having a free batch axis and nothing more."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return (None,)
    return tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in kind.shape.dim)


def _port(value: onnx.ValueInfoProto) -> Port:
    return Port(value.name, DATATYPES[value.type.tensor_type.elem_type], _extents(value)[1:])


def _free(graph: onnx.GraphProto, extent: int) -> None:
    """Declare axis 0 free everywhere, and let each Reshape that spells ``extent`` out in front copy it."""
    for value in (*graph.input, *graph.output):
        axes = value.type.tensor_type.shape.dim
        if axes and axes[0].HasField("dim_value"):
            axes[0].dim_param = BATCH
    del graph.value_info[:]  # they spell the old extent
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    for node in graph.node:
        if node.op_type != "Reshape" or len(node.input) < 2 or node.input[1] not in constants:
            continue
        tensor = constants[node.input[1]]
        shape = numpy_helper.to_array(tensor)
        if len(shape) and shape[0] == extent:
            copied = np.array([0, *shape[1:]], np.int64)  # 0: the extent of the input's own axis 0
            tensor.CopyFrom(numpy_helper.from_array(copied, tensor.name))
