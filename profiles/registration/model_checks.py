"""Validates untrusted model files.

Rules. The file is a plain one of bounded size that parses as ONNX. Operators are those of the standard, its machine
learning part and ONNX Runtime's own: nothing names code elsewhere; functions of the model's own are inlined first.
Weights kept beside the graph lie in plain files inside the model's folder, links followed, and are taken into it.
Weights are as large as they say, and finite. What is wrong is one InvalidInputError; nothing is mended silently.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, numpy_helper

from sluicegate.domain.errors import InvalidInputError

FIELD = "model"
DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Operator sets that ONNX Runtime itself implements."""
OLDEST_OPSET = 7
"""The oldest that ONNX Runtime takes."""
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Of a model with the weights beside it. ``nodes``: operators, those of subgraphs included."""

    total_bytes: int = (1 << 31) - 1
    nodes: int = 200_000


def read_checked(path: Path, limits: ModelLimits | None = None) -> onnx.ModelProto:
    """The model at ``path``, checked, self-contained. Raises InvalidInputError."""
    limits = limits or ModelLimits()
    data = _read(path, limits.total_bytes)
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf raises classes of its own, by implementation
        raise _wrong("cannot be read as ONNX: it is truncated, or of another format; export it again") from error
    _check_text(model)
    _check_versions(model)
    model = _inlined(model)
    _check_operators(model, limits.nodes)
    _take_in(model, path.parent, limits.total_bytes - len(data))
    _check_weights(model)
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # ValidationError of the C++ checker, and whatever lies below it
        raise _wrong(f"is not valid ONNX ({_first_line(error)}); export it again") from error
    return model


def _read(path: Path, limit: int) -> bytes:
    if path.is_dir():
        raise _wrong(f"{path} is a folder; give the .onnx file in it")
    if not path.is_file():
        raise _wrong(f"{path} is not there, or not a plain file; give an .onnx file")
    size = path.stat().st_size
    if size == 0:
        raise _wrong(f"{path} is empty; export it again")
    if size > limit:
        raise _wrong(f"{path} has {size} bytes; at most {limit} are taken")
    try:
        return path.read_bytes()
    except OSError as error:
        raise _wrong(f"{path}: {error.strerror}; make it readable") from error


def _check_text(model: onnx.ModelProto) -> None:
    """Names that are no UTF-8 come as bytes, which nothing behind this expects."""
    left: list[Any] = [model]
    while left:
        for field, value in left.pop().ListFields():
            several = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
            if field.type == field.TYPE_MESSAGE:
                left.extend(several)
            elif field.type == field.TYPE_STRING and not all(isinstance(one, str) for one in several):
                raise _wrong(f"has a {field.name} that is no text; export it again")


def _check_versions(model: onnx.ModelProto) -> None:
    if not model.opset_import or not model.graph.node:
        raise _wrong("holds no graph with operators; it is truncated, or no ONNX model")
    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise _wrong(f"has IR version {model.ir_version}; 3 to {onnx.IR_VERSION} are understood: export it again")
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not OLDEST_OPSET <= entry.version <= defs.onnx_opset_version():
            raise _wrong(
                f"has opset {entry.version}; {OLDEST_OPSET} to {defs.onnx_opset_version()} are understood: "
                "export or convert it to one of them"
            )


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    if not model.functions:
        return model
    import onnx.inliner  # only for the models that need it

    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner is C++ and raises what it likes
        raise _wrong(f"has functions that cannot be inlined ({_first_line(error)}); export it without") from error


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and the graphs inside its operators, outermost first."""
    left = [graph]
    while left:
        found = left.pop()
        yield found
        for node in found.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    left.append(attribute.g)
                left.extend(attribute.graphs)


def _check_operators(model: onnx.ModelProto, limit: int) -> None:
    versions = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import}
    count = 0
    for graph in graphs(model.graph):
        count += len(graph.node)
        if count > limit:
            raise _wrong(f"has over {limit} operators; give a smaller one")
        for node in graph.node:
            if node.domain not in DOMAINS:
                raise _wrong(
                    f"uses operator {node.domain[:60]}.{node.op_type[:60]}, which is custom code; "
                    "use operators of the ONNX standard"
                )
            domain = "" if node.domain == "ai.onnx" else node.domain
            if domain != "com.microsoft" and not defs.has(node.op_type, versions.get(domain, 0), domain):
                raise _wrong(
                    f"uses operator {node.op_type[:60]!r}, which opset {versions.get(domain, 0)} of "
                    f"{domain or 'ai.onnx'} does not have; export it for a newer opset"
                )


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every constant of the model: initialisers, and tensors in attributes, sparse ones included."""
    for graph in graphs(model.graph):
        yield from graph.initializer
        sparse = list(graph.sparse_initializer)
        for attribute in (a for node in graph.node for a in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            sparse += attribute.sparse_tensors
        for each in sparse:
            yield each.values
            yield each.indices


def _take_in(model: onnx.ModelProto, folder: Path, room: int) -> None:
    """Put the weights that lie beside the graph into it."""
    for tensor in tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        described = {entry.key: entry.value for entry in tensor.external_data}
        path = _inside(folder, described.get("location", ""), tensor.name)
        offset, length = _extent(described, path, tensor.name)
        room -= length
        if room < 0:
            raise _wrong(f"and its weights are larger than what is taken; at {tensor.name[:80]!r}")
        with path.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT


def _inside(folder: Path, location: str, name: str) -> Path:
    written = PurePosixPath(location)
    if not location or written.is_absolute() or ".." in written.parts or "\\" in location or "\0" in location:
        raise _wrong(f"keeps weights {name[:80]!r} at {location[:120]!r}: outside its folder; put them beside it")
    path = folder / location
    if not path.is_file():
        raise _wrong(f"keeps weights {name[:80]!r} in {location[:120]!r}, which is not there; put it beside the model")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise _wrong(f"keeps weights {name[:80]!r} behind a link that leaves its folder; put the file itself there")
    return path


def _extent(described: dict[str, str], path: Path, name: str) -> tuple[int, int]:
    size = path.stat().st_size
    try:
        offset = int(described.get("offset") or 0)
        length = int(described.get("length") or size - offset)
    except ValueError:
        offset = length = -1
    if offset < 0 or length < 0 or offset + length > size:
        raise _wrong(f"keeps weights {name[:80]!r} beyond the end of {path.name} ({size} bytes); copy it again, whole")
    return offset, length


def _check_weights(model: onnx.ModelProto) -> None:
    for tensor in tensors(model):
        name = tensor.name[:80]
        if tensor.data_type == TensorProto.STRING:
            continue
        if any(extent < 0 for extent in tensor.dims) or prod(tensor.dims) > 1 << 40:
            raise _wrong(f"says that weights {name!r} have shape {list(tensor.dims)[:8]}; export it again")
        try:
            values = _values(tensor)
        except Exception as error:  # ValueError, TypeError, KeyError: by what is wrong with the tensor
            raise _wrong(f"has weights {name!r} that are not as large as they say; export it again") from error
        if tensor.data_type in _FLOATS and not np.isfinite(values).all():
            raise _wrong(f"has weights {name!r} that are NaN or infinite: training diverged, or the file is damaged")


def _values(tensor: onnx.TensorProto) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    values = numpy_helper.to_array(tensor)
    if tensor.data_type == TensorProto.BFLOAT16:
        values = values.astype(np.float32)
    return values  # type: ignore[no-any-return]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(FIELD, problem)
