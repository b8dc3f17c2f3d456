"""A model of text: is a line Python code, a comment or prose. Trained on Python's own standard library.

    python examples/text_model.py         # or with a folder of your choice behind it
    sluice register ...                    # as it prints

Bytes in, so that nothing but the graph has to know how text becomes numbers: each pair of neighbouring bytes is hashed
to a row of a table, and the rows are added up (a linear model of character bigrams). A query carries a line of 1 to 320
bytes. In a batch, lines are filled up with zeros to the longest; the graph leaves out every pair that ends in a zero,
so that an answer does not depend on the company it came in.
"""

import os
import sys
import sysconfig
import tokenize
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LENGTH, TABLE, CLASSES = 320, 2048, 3
KINDS = ("code", "comment", "prose")


def as_bytes(text: str) -> np.ndarray:
    """One line as LENGTH bytes, zeros behind."""
    data = text.strip().encode(errors="replace")[:LENGTH]
    return np.frombuffer(data.ljust(LENGTH, b"\0"), np.uint8)


def lines_of(path: Path) -> list[tuple[str, int]]:
    """Lines of one source file with their kind, without what would give it away (the # and the quotes)."""
    found: list[tuple[str, int]] = []
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT and len(token.string) > 20:
                found.append((token.string.lstrip("# "), 1))
            elif token.type == tokenize.STRING and token.string.startswith('"""'):
                found += [(line, 2) for line in token.string[3:-3].splitlines() if len(line.strip()) > 20]
            elif token.type == tokenize.NEWLINE and len(token.line.strip()) > 20 and '"""' not in token.line:
                found.append((token.line.partition("#")[0], 0))
    return found


def collect(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """``count`` lines of each kind."""
    by_kind: dict[int, list[str]] = {k: [] for k in range(CLASSES)}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for line, kind in lines_of(path):
            by_kind[kind].append(line)
    texts, labels = [], []
    for kind, lines in by_kind.items():
        for i in rng.permutation(len(lines))[:count]:
            texts.append(as_bytes(lines[i]))
            labels.append(kind)
    order = rng.permutation(len(texts))
    return np.stack(texts)[order], np.array(labels)[order]


def bigrams(lines: np.ndarray) -> np.ndarray:
    """Counts of hashed pairs, as the graph sums them."""
    wide = lines.astype(np.int64)
    hashed = (wide[:, :-1] * 31 + wide[:, 1:]) % TABLE
    kept = lines[:, 1:] != 0
    return np.stack([np.bincount(row[k], minlength=TABLE) for row, k in zip(hashed, kept, strict=True)]).astype(
        np.float32
    )


def main(folder: Path) -> None:
    """Fit by ridge regression; write the graph, and lines that it has not seen."""
    rng = np.random.default_rng(0)
    lines, labels = collect(1500, rng)
    training = 3 * len(lines) // 4
    x = bigrams(lines[:training])
    gram = x.T @ x + 3.0 * np.eye(TABLE, dtype=np.float32)
    table = np.linalg.solve(gram, x.T @ np.eye(CLASSES, dtype=np.float32)[labels[:training]]).astype(np.float32)

    integers = {
        "first": np.array([0]), "second": np.array([1]), "before_last": np.array([-1]), "last": np.array([1 << 31]),
        "axis": np.array([1]), "behind": np.array([2]), "factor": np.array(31), "size": np.array(TABLE),
    }  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["line"], ["wide"], to=TensorProto.INT64),
            helper.make_node("Slice", ["wide", "first", "before_last", "axis"], ["left"]),
            helper.make_node("Slice", ["wide", "second", "last", "axis"], ["right"]),
            helper.make_node("Mul", ["left", "factor"], ["scaled"]),
            helper.make_node("Add", ["scaled", "right"], ["mixed"]),
            helper.make_node("Mod", ["mixed", "size"], ["hashed"]),
            helper.make_node("Gather", ["table", "hashed"], ["parts"]),
            helper.make_node("Cast", ["right"], ["written"], to=TensorProto.BOOL),
            helper.make_node("Cast", ["written"], ["kept"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["kept", "behind"], ["mask"]),
            helper.make_node("Mul", ["parts", "mask"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "axis"], ["scores"], keepdims=0),
        ],
        "lines",
        [helper.make_tensor_value_info("line", TensorProto.UINT8, ["n", "length"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(value.astype(np.int64), name) for name, value in integers.items()]
        + [numpy_helper.from_array(table, "table")],
    )
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx"
    )
    np.savez(folder / "rows.npz", line=lines[training:], label=labels[training:])
    print(f"sluice register {folder}/model.onnx --app lines --validation {folder}/rows.npz --varying line")


if __name__ == "__main__":
    home = Path(os.environ.get("SLUICE_HOME", "~/.sluicegate")).expanduser()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else home / "examples" / "lines")
