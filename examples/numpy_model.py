"""Models of one's own with nothing but NumPy: which of four clouds does a point belong to.

    python examples/numpy_model.py         # or with a folder of your choice behind it
    sluice register ...                    # as it prints
    sluice up                              # and, in a second terminal:
    sluice infer --app clouds

Random ReLU features and a least-squares head: two-layer networks without a training loop, a small one, a medium one
and a large one, so that there is something to scale between.
"""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES, CLASSES = 16, 4
HIDDEN = {"small": 48, "medium": 768, "large": 3072}


def rows(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points on four interleaved shells, and which shell each lies on."""
    labels = rng.integers(0, CLASSES, count)
    points = rng.standard_normal((count, FEATURES))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    radii = 1.0 + 0.6 * labels + 0.12 * rng.standard_normal(count)
    return (points * radii[:, None]).astype(np.float32), labels


def fitted(x: np.ndarray, y: np.ndarray, hidden: int, rng: np.random.Generator) -> onnx.ModelProto:
    """A network of so many hidden units as a graph; the rows it is fitted on."""
    filters = rng.standard_normal((FEATURES, hidden)).astype(np.float32)
    biases = rng.standard_normal(hidden).astype(np.float32)
    activated = np.maximum(x @ filters + biases, 0.0)
    gram = activated.T @ activated
    gram[np.diag_indices(hidden)] += 0.1 * hidden
    head = np.linalg.solve(gram, activated.T @ (np.eye(CLASSES, dtype=np.float32)[y] - np.float32(1.0 / CLASSES)))

    constants = {"filters": filters, "biases": biases, "head": head}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["point", "filters"], ["projected"]),
            helper.make_node("Add", ["projected", "biases"], ["shifted"]),
            helper.make_node("Relu", ["shifted"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "head"], ["scores"]),
        ],
        "clouds",
        # "n" leaves the batch axis free, so that queries can be answered together.
        [helper.make_tensor_value_info("point", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main(folder: Path) -> None:
    """Fit on 4,000 rows; write the graphs, and 1,000 other rows with their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    x, y = rows(4000, rng)
    for name, hidden in HIDDEN.items():
        onnx.save(fitted(x, y, hidden, rng), folder / f"{name}.onnx")
    x, y = rows(1000, rng)
    np.savez(folder / "rows.npz", point=x, label=y)
    models = " ".join(f"{folder}/{name}.onnx" for name in HIDDEN)
    print(f"sluice register {models} --app clouds --validation {folder}/rows.npz")


if __name__ == "__main__":
    home = Path(os.environ.get("SLUICE_HOME", "~/.sluicegate")).expanduser()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else home / "examples" / "clouds")
