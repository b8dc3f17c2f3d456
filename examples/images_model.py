"""A model of images: scikit-learn's handwritten digits, random 3x3 patches as convolution filters, a linear head.

    python examples/images_model.py         # or with a folder of your choice behind it
    sluice register ...                    # as it prints

Rows come as a folder for each class here, an .npy file for each image. Pixels are bytes, and are scaled in the graph:
what the model expects is then part of it.
"""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

FILTERS, SIDE, CLASSES = 64, 8, 10
TRAINING = 1200


def features(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """As the graph computes them: convolution, ReLU, average of 3x3 blocks."""
    windows = np.lib.stride_tricks.sliding_window_view(images[:, 0], (3, 3), axis=(1, 2))
    maps = np.maximum(np.einsum("nijkl,fkl->nfij", windows, filters[:, 0]), 0.0)
    return maps.reshape(len(images), FILTERS, 2, 3, 2, 3).mean(axis=(3, 5)).reshape(len(images), -1)


def main(folder: Path) -> None:
    """Fit on the first rows; write the graph, and the others as files."""
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 1, SIDE, SIDE).astype(np.uint8)
    rng = np.random.default_rng(0)
    filters = rng.standard_normal((FILTERS, 1, 3, 3)).astype(np.float32) / 16.0
    known = features(images[:TRAINING].astype(np.float32), filters)
    gram = known.T @ known + np.eye(known.shape[1])
    head = np.linalg.solve(gram, known.T @ np.eye(CLASSES)[labels[:TRAINING]]).astype(np.float32)

    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Conv", ["numbers", "filters"], ["maps"]),
            helper.make_node("Relu", ["maps"], ["rectified"]),
            helper.make_node("AveragePool", ["rectified"], ["pooled"], kernel_shape=[3, 3], strides=[3, 3]),
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
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx"
    )
    for i in range(TRAINING, len(images)):
        of_class = folder / "rows" / str(labels[i])
        of_class.mkdir(parents=True, exist_ok=True)
        np.save(of_class / f"{i}.npy", images[i])
    print(f"sluice register {folder}/model.onnx --app handwriting --validation {folder}/rows")


if __name__ == "__main__":
    home = Path(os.environ.get("SLUICE_HOME", "~/.sluicegate")).expanduser()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else home / "examples" / "handwriting")
