"""Models of strings, from string to string: what is a short order about. Nothing but NumPy, and ONNX's own operators.

    python examples/strings_model.py       # or with a folder of your choice behind it
    sluice register ...                    # as it prints
    sluice up                              # and, in a second terminal:
    sluice infer --app orders --input order.json

Input and output are BYTES: a query carries text, and the answer is the name of a class. Inside the graph a tokenizer
splits each text at its blanks, a label encoder looks the words up (words it does not know count for nothing), a table
says how much each word speaks for each class, and a second label encoder names the class with the most. The smaller
model knows the commonest words only.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = {
    "delivery": "parcel courier late arrived address door track shipment van missing box depot",
    "payment": "invoice card charged refund price bank twice receipt amount tax debit coupon",
    "account": "password login email locked name profile delete change sign phone code reset",
    "product": "broken size colour screen battery cable manual loud small fits heavy scratched",
}
SHARED = "my the is was please help with a for not and again today order still why it has been about"
KNOWN = {"small": 45, "large": 200}
"""Words that each model knows."""


def texts(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Orders of 3 to 14 words, and what they are about: one word in three is of its class, one in ten of another."""
    names = list(CLASSES)
    words, shared = [held.split() for held in CLASSES.values()], SHARED.split()
    labels = rng.integers(0, len(names), count)
    lines = []
    for label in labels:
        line = []
        for chance in rng.random(rng.integers(3, 15)):
            other = int(rng.integers(0, len(names)))
            line.append(rng.choice(words[label] if chance < 0.33 else words[other] if chance < 0.43 else shared))
        lines.append(" ".join(line))
    return np.array(lines), np.array(names)[labels]


def fitted(lines: np.ndarray, labels: np.ndarray, known: int) -> onnx.ModelProto:
    """A model that knows the ``known`` commonest words of ``lines``."""
    names = sorted(set(labels.tolist()))
    words = [word for word, _ in Counter(word for line in lines for word in line.split()).most_common(known)]
    number = {word: i + 1 for i, word in enumerate(words)}
    counts = np.zeros((len(lines), len(words) + 1))
    for row, line in zip(counts, lines, strict=True):
        for word in line.split():
            row[number.get(word, 0)] += 1.0
    counts[:, 0] = 0.0
    wanted = (labels[:, None] == np.array(names)) - 1.0 / len(names)
    table = np.linalg.solve(counts.T @ counts + np.eye(len(words) + 1), counts.T @ wanted).astype(np.float32)
    nodes = [
        helper.make_node(
            "Tokenizer", ["text"], ["tokens"], domain="com.microsoft",
            mark=0, mincharnum=1, pad_value="", separators=[" "],
        ),
        helper.make_node(
            "LabelEncoder", ["tokens"], ["ids"], domain="ai.onnx.ml",
            keys_strings=words, values_int64s=list(number.values()), default_int64=0,
        ),
        helper.make_node("Gather", ["table", "ids"], ["said"]),
        helper.make_node("ReduceSum", ["said", "tokens_axis"], ["scores"], keepdims=0),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node(
            "LabelEncoder", ["best"], ["about"], domain="ai.onnx.ml",
            keys_int64s=list(range(len(names))), values_strings=names, default_string="",
        ),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "orders",
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["n"])],
        [
            helper.make_tensor_value_info("about", TensorProto.STRING, ["n"]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", len(names)]),
        ],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1], np.int64), "tokens_axis")],
    )
    opsets = {"": 17, "ai.onnx.ml": 2, "com.microsoft": 1}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*one) for one in opsets.items()], ir_version=9)


def main(folder: Path) -> None:
    """Fit on 3,000 texts; write the models, 600 other texts with their labels, and one to ask about."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines, labels = texts(3000, rng)
    for name, known in KNOWN.items():
        onnx.save(fitted(lines, labels, known), folder / "models" / f"{name}.onnx")
    lines, labels = texts(600, rng)
    np.savez(folder / "rows.npz", text=lines, label=labels)
    (folder / "order.json").write_text(json.dumps({"text": ["why was my card charged twice"]}))
    models = " ".join(f"{folder}/models/{name}.onnx" for name in KNOWN)
    print(f"sluice register {models} --app orders --validation {folder}/rows.npz")
    print(f"sluice infer --app orders --input {folder}/order.json")


if __name__ == "__main__":
    home = Path(os.environ.get("SLUICE_HOME", "~/.sluicegate")).expanduser()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else home / "examples" / "orders")
