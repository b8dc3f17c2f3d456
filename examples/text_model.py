"""Models of text: is a line Python code, a comment or prose. Trained on Python's own standard library.

    python examples/text_model.py         # or with a folder of your choice behind it
    sluice register ...                    # as it prints

Bytes in, so that nothing but the graph has to know how text becomes numbers: each run of neighbouring bytes (single
ones, pairs, or both) is hashed to a row of a table, and the rows are added up, a linear model of character n-grams.
The more runs, the slower. A query carries a line of 1 to 320 bytes. In a batch, lines are
filled up with zeros to the longest; the graph leaves out every run that ends in a zero, so that an answer does not
depend on the company it came in.
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
RUNS = {"small": (1,), "medium": (2,), "large": (1, 2)}
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


def counted(lines: np.ndarray, run: int) -> np.ndarray:
    """Counts of hashed runs of so many bytes, as the graph sums them."""
    wide = lines.astype(np.int64)
    hashed = wide[:, : LENGTH - run + 1]
    for i in range(1, run):
        hashed = (hashed * 31 + wide[:, i : LENGTH - run + 1 + i]) % TABLE
    kept = lines[:, run - 1 :] != 0
    return np.stack([np.bincount(row[k], minlength=TABLE) for row, k in zip(hashed, kept, strict=True)]).astype(
        np.float32
    )


def fitted(lines: np.ndarray, labels: np.ndarray, runs: tuple[int, ...]) -> onnx.ModelProto:
    """A model of runs of these lengths, by ridge regression, as a graph."""
    x = np.concatenate([counted(lines, run) for run in runs], axis=1)
    gram = x.T @ x + 3.0 * np.eye(x.shape[1], dtype=np.float32)
    table = np.linalg.solve(gram, x.T @ np.eye(CLASSES, dtype=np.float32)[labels]).astype(np.float32)
    constants = {"axis": np.array([1]), "behind": np.array([2]), "factor": np.array(31), "size": np.array(TABLE)}
    nodes = [helper.make_node("Cast", ["line"], ["wide"], to=TensorProto.INT64)]
    for r, run in enumerate(runs):
        for i in range(run):
            constants |= {f"from{r}.{i}": np.array([i]), f"to{r}.{i}": np.array([i - run + 1 or 1 << 31])}
            nodes.append(helper.make_node("Slice", ["wide", f"from{r}.{i}", f"to{r}.{i}", "axis"], [f"byte{r}.{i}"]))
        hashed = f"byte{r}.0"
        for i in range(1, run):
            nodes.append(helper.make_node("Mul", [hashed, "factor"], [f"scaled{r}.{i}"]))
            nodes.append(helper.make_node("Add", [f"scaled{r}.{i}", f"byte{r}.{i}"], [f"mixed{r}.{i}"]))
            nodes.append(helper.make_node("Mod", [f"mixed{r}.{i}", "size"], [f"hashed{r}.{i}"]))
            hashed = f"hashed{r}.{i}"
        nodes += [
            helper.make_node("Gather", [f"table{r}", hashed], [f"parts{r}"]),
            helper.make_node("Cast", [f"byte{r}.{run - 1}"], [f"written{r}"], to=TensorProto.BOOL),
            helper.make_node("Cast", [f"written{r}"], [f"kept{r}"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", [f"kept{r}", "behind"], [f"mask{r}"]),
            helper.make_node("Mul", [f"parts{r}", f"mask{r}"], [f"masked{r}"]),
            helper.make_node("ReduceSum", [f"masked{r}", "axis"], [f"sum{r}"], keepdims=0),
        ]
    nodes.append(helper.make_node("Sum", [f"sum{r}" for r in range(len(runs))], ["scores"]))
    tables = [numpy_helper.from_array(table[r * TABLE : (r + 1) * TABLE], f"table{r}") for r in range(len(runs))]
    graph = helper.make_graph(
        nodes,
        "lines",
        [helper.make_tensor_value_info("line", TensorProto.UINT8, ["n", "length"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(value.astype(np.int64), name) for name, value in constants.items()] + tables,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main(folder: Path) -> None:
    """Fit; write the graphs, and lines that they have not seen."""
    rng = np.random.default_rng(0)
    lines, labels = collect(1500, rng)
    training = 3 * len(lines) // 4
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name, runs in RUNS.items():
        onnx.save(fitted(lines[:training], labels[:training], runs), folder / "models" / f"{name}.onnx")
    np.savez(folder / "rows.npz", line=lines[training:], label=labels[training:])
    print(f"sluice register {folder}/models --app lines --validation {folder}/rows.npz --varying line")


if __name__ == "__main__":
    home = Path(os.environ.get("SLUICE_HOME", "~/.sluicegate")).expanduser()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else home / "examples" / "lines")
