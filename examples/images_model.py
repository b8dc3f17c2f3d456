"""Models of images: scikit-learn's handwritten digits, random 5x5 patches as convolution filters, a linear head.

    python examples/images_model.py         # or with a folder of your choice behind it
    sluice register ...                    # as it prints

Rows come as a folder for each class here, an .npy file for each image. Pixels are bytes, and are scaled in the graph:
what the model expects is then part of it. The more filters, the more accurate and the slower.
"""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

FILTERS = {"small": 6, "medium": 24, "large": 160}
SIDE, CLASSES = 8, 10
TRAINING = 1200


def features(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """As the graph computes them: convolution, ReLU, average of 4x4 blocks."""
    padded = np.pad(images[:, 0], ((0, 0), (2, 2), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
    maps = np.maximum(np.einsum("nijkl,fkl->nfij", windows, filters[:, 0]), 0.0)
    means: np.ndarray = maps.reshape(len(images), len(filters), 2, 4, 2, 4).mean(axis=(3, 5))
    return means.reshape(len(images), -1)


def fitted(images: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> onnx.ModelProto:
    """A network of so many filters as a graph."""
    filters = rng.standard_normal((count, 1, 5, 5)).astype(np.float32) / 16.0
    known = features(images.astype(np.float32), filters)
    gram = known.T @ known + np.eye(known.shape[1])
    head = np.linalg.solve(gram, known.T @ np.eye(CLASSES)[labels]).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Conv", ["numbers", "filters"], ["maps"], pads=[2, 2, 2, 2]),
            helper.make_node("Relu", ["maps"], ["rectified"]),
            helper.make_node("AveragePool", ["rectified"], ["pooled"], kernel_shape=[4, 4], strides=[4, 4]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "head"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ],
        "handwriting",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", 1, SIDE, SIDE])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        ],
        [numpy_helper.from_array(value, name) for name, value in (("filters", filters), ("head", head))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main(folder: Path) -> None:
    """Fit on the first rows; write the graphs, and the other rows as files."""
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 1, SIDE, SIDE).astype(np.uint8)
    rng = np.random.default_rng(0)
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name, count in FILTERS.items():
        onnx.save(fitted(images[:TRAINING], labels[:TRAINING], count, rng), folder / "models" / f"{name}.onnx")
    for i in range(TRAINING, len(images)):
        of_class = folder / "rows" / str(labels[i])
        of_class.mkdir(parents=True, exist_ok=True)
        np.save(of_class / f"{i}.npy", images[i])
    print(f"sluice register {folder}/models --app handwriting --validation {folder}/rows")


if __name__ == "__main__":
    home = Path(os.environ.get("SLUICE_HOME", "~/.sluicegate")).expanduser()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else home / "examples" / "handwriting")
