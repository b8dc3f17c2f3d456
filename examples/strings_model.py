"""Models of strings, from string to string: what is a short order about. Nothing but NumPy, and ONNX's own operators.

    python examples/strings_model.py       # or with a folder of your choice behind it
    sluice register ...                    # as it prints
    sluice up                              # and, in a second terminal:
    sluice infer --app orders --input order.json

Input and output are BYTES: a query carries text, and the answer is the name of a class. Inside the graph a tokenizer
splits each text at its blanks, a label encoder looks the words up (words it does not know count for nothing), a table
says how much each word speaks for each class, and a second label encoder names the class with the most. The small model
does no more than that; in the medium one a hidden layer learns what "instead" does to the rest; the large one also
counts a word behind "not" as another word. Each is slower than the one before, and right more often.
"""

import json
import os
import sys
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
SHARED = "my the is was please help with a for and again today order still why it has been about"
NOT, INSTEAD = "not", "instead"
WORDS = [word for line in (*CLASSES.values(), SHARED) for word in line.split()] + [NOT, INSTEAD]
SIZES = {"small": (False, 0), "medium": (False, 1024), "large": (True, 2560)}
"""Whether what stands behind "not" is told apart, and hidden units."""


def texts(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Orders of 6 to 16 words, and what they are about: one class more than another, unless "instead" says otherwise.
    Most words of the class that it is less about stand behind "not"."""
    names = list(CLASSES)
    words, shared = [held.split() for held in CLASSES.values()], SHARED.split()
    lines, labels = [], []
    for _ in range(count):
        about, other = rng.choice(len(names), 2, replace=False)
        line: list[str] = []
        for chance in rng.random(rng.integers(6, 15)):
            denied = [NOT] if 0.3 <= chance < 0.43 else []
            line += [*denied, rng.choice(words[about] if chance < 0.3 else words[other] if chance < 0.52 else shared)]
        swapped = rng.random() < 0.3
        if swapped:
            line.insert(int(rng.integers(0, len(line) + 1)), INSTEAD)
        lines.append(" ".join(line))
        labels.append(names[other if swapped else about])
    return np.array(lines), np.array(labels)


def counted(lines: np.ndarray, *, denied: bool) -> np.ndarray:
    """How often each word stands in each line; ``denied``: those behind "not" in columns of their own."""
    number = {word: i + 1 for i, word in enumerate(WORDS)}
    counts = np.zeros((len(lines), 2 * (len(WORDS) + 1)))
    for row, line in zip(counts, lines, strict=True):
        before = ""
        for word in line.split():
            row[number.get(word, 0) + (len(WORDS) + 1) * (denied and before == NOT)] += 1.0
            before = word
    return counts


def solved(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """Ridge regression."""
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y).astype(np.float32)


def fitted(lines: np.ndarray, labels: np.ndarray, *, denied: bool, hidden: int) -> onnx.ModelProto:
    """A model of one of the sizes."""
    names = sorted(set(labels.tolist()))
    counts = counted(lines, denied=denied)
    wanted = (labels[:, None] == np.array(names)) - 1.0 / len(names)
    swapping = WORDS.index(INSTEAD) + 1
    plain = counts[:, swapping] == 0.0 if hidden else np.ones(len(lines), bool)
    table = solved(counts[plain], wanted[plain], 1.0)
    constants: dict[str, np.ndarray] = {"tokens_axis": np.array([1], np.int64)}
    nodes = [
        helper.make_node(
            "Tokenizer", ["text"], ["tokens"], domain="com.microsoft",
            mark=0, mincharnum=1, pad_value="", separators=[" "],
        ),
        helper.make_node(
            "LabelEncoder", ["tokens"], ["words"], domain="ai.onnx.ml",
            keys_strings=WORDS, values_int64s=list(range(1, len(WORDS) + 1)), default_int64=0,
        ),
    ]  # fmt: skip
    ids = "words"
    if denied:  # the word before each, moved to a part of the table of its own where that is "not"
        constants |= {
            "pads": np.array([0, 1, 0, -1], np.int64),
            "not": np.array(WORDS.index(NOT) + 1, np.int64),
            "denied_words": np.array(len(WORDS) + 1, np.int64),
        }
        nodes += [
            helper.make_node("Pad", ["words", "pads"], ["before"]),
            helper.make_node("Equal", ["before", "not"], ["is_denied"]),
            helper.make_node("Cast", ["is_denied"], ["denied"], to=TensorProto.INT64),
            helper.make_node("Mul", ["denied", "denied_words"], ["moved"]),
            helper.make_node("Add", ["words", "moved"], ["ids"]),
        ]
        ids = "ids"
    said = "scores"
    if hidden:  # of how much the words speak for each class, and whether "instead" is among them
        table = np.concatenate([3.0 * table, np.zeros((len(table), 1), np.float32)], axis=1)
        table[swapping] = table[swapping + len(WORDS) + 1] = [0.0] * len(names) + [1.0]
        rng = np.random.default_rng(1)
        first = rng.standard_normal((len(names) + 1, hidden)).astype(np.float32)
        bias = rng.standard_normal(hidden).astype(np.float32)
        head = solved(np.maximum(counts @ table @ first + bias, 0.0), wanted, 30.0)
        constants |= {"first": first, "bias": bias, "head": head}
        said = "said"
    constants["table"] = table
    nodes += [
        helper.make_node("Gather", ["table", ids], ["spoken"]),
        helper.make_node("ReduceSum", ["spoken", "tokens_axis"], [said], keepdims=0),
    ]
    if hidden:
        nodes += [
            helper.make_node("Gemm", ["said", "first", "bias"], ["shifted"]),
            helper.make_node("Relu", ["shifted"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "head"], ["scores"]),
        ]
    nodes += [
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
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = {"": 17, "ai.onnx.ml": 2, "com.microsoft": 1}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*one) for one in opsets.items()], ir_version=9)


def main(folder: Path) -> None:
    """Fit on 3,000 texts; write the models, 1,000 other texts with their labels, and one to ask about."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines, labels = texts(3000, rng)
    for name, (denied, hidden) in SIZES.items():
        onnx.save(fitted(lines, labels, denied=denied, hidden=hidden), folder / "models" / f"{name}.onnx")
    lines, labels = texts(1000, rng)
    np.savez(folder / "rows.npz", text=lines, label=labels)
    (folder / "order.json").write_text(json.dumps({"text": ["why was my card charged twice"]}))
    models = " ".join(f"{folder}/models/{name}.onnx" for name in SIZES)
    print(f"sluice register {models} --app orders --validation {folder}/rows.npz")
    print(f"sluice infer --app orders --input {folder}/order.json")


if __name__ == "__main__":
    home = Path(os.environ.get("SLUICE_HOME", "~/.sluicegate")).expanduser()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else home / "examples" / "orders")
