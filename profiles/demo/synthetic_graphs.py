"""Graphs as heavy as the papers' models, with random weights: tens to hundreds of milliseconds on a CPU core.

Their shapes are those of ResNet (He et al. 2016), EfficientNet (Tan, Le 2019) and BERT (Devlin et al. 2019; the small
ones Turc et al. 2019); their answers mean nothing. Accuracies are the published ones (ImageNet top-1 of torchvision's
weights, MNLI) and marked nominal. Batch norms are left out: at inference they are folded into the convolutions.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.profiles.demo.features import Array
from sluicegate.profiles.demo.fitting import Fitted

IMAGE = App(
    name="image",
    slo=0.5,
    inputs=(TensorSpec("image", "FP32", (3, 224, 224)),),
    outputs=(TensorSpec("label", "INT64", ()),),
    max_rows=4,
)
TOKENS = 128
_SEED = 0
TEXT = App(
    name="text",
    slo=0.3,
    inputs=(TensorSpec("tokens", "INT64", (TOKENS,)),),
    outputs=(TensorSpec("label", "INT64", ()),),
    max_rows=4,
)


@dataclass(frozen=True, slots=True)
class HeavyModel:
    """One graph to build. ``accuracy``: published, 0..1."""

    app: App
    name: str
    family: str
    accuracy: float
    write: Callable[["Weights"], None]


class Weights:
    """A graph under construction, with weights drawn from one seed, scaled so that activations keep their size."""

    def __init__(self, seed: int) -> None:
        from sluicegate.profiles.demo.graphs import Graph  # needs onnx, which only who builds has to have

        self.graph = Graph()
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int, fan_in: int) -> str:
        """A constant of ``shape``, variance 2 / fan_in."""
        values = self._rng.standard_normal(shape, np.float32) * np.float32(math.sqrt(2.0 / fan_in))
        return self.graph.constant(values)

    def number(self, *values: float) -> str:
        """A small constant."""
        return self.graph.constant(np.array(values, np.float32))

    def integers(self, *values: int) -> str:
        """A small constant of integers."""
        return self.graph.constant(np.array(values, np.int64))

    def convolve(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1) -> str:
        """A convolution that keeps the extent, apart from the stride. ``channels``: in, out."""
        inside, out = channels
        weights = self.normal(out, inside // groups, kernel, kernel, fan_in=inside // groups * kernel * kernel)
        bias = self.graph.constant(np.zeros(out, np.float32))
        pad = kernel // 2
        return self.graph.add("Conv", x, weights, bias, strides=[stride] * 2, pads=[pad] * 4, group=groups)

    def dense(self, x: str, inside: int, out: int) -> str:
        """x @ W + b over the last axis."""
        product = self.graph.add("MatMul", x, self.normal(inside, out, fan_in=inside))
        return self.graph.add("Add", product, self.graph.constant(np.zeros(out, np.float32)))

    def classify(self, x: str, inside: int, classes: int) -> None:
        """Label of [n, inside]."""
        self.graph.add("ArgMax", self.dense(x, inside, classes), axis=1, keepdims=0, output="label")


def resnet(blocks: tuple[int, ...], bottleneck: bool, w: Weights) -> None:
    """ResNet for ImageNet: a 7x7 stem, four stages of residual blocks, average pooling, 1,000 classes."""
    add = w.graph.add
    x = add("Relu", w.convolve("image", (3, 64), 7, 2))
    x = add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inside = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        out = width * 4 if bottleneck else width
        for i in range(count):
            stride = 2 if stage and i == 0 else 1
            if bottleneck:
                y = add("Relu", w.convolve(x, (inside, width), 1))
                y = add("Relu", w.convolve(y, (width, width), 3, stride))
                y = w.convolve(y, (width, out), 1)
            else:
                y = add("Relu", w.convolve(x, (inside, width), 3, stride))
                y = w.convolve(y, (width, out), 3)
            short = x if inside == out and stride == 1 else w.convolve(x, (inside, out), 1, stride)
            # Halved, as the batch norms would: otherwise activations grow with every block.
            x = add("Relu", add("Mul", add("Add", y, short), w.number(0.5)))
            inside = out
    x = add("Flatten", add("GlobalAveragePool", x))
    w.classify(x, inside, 1000)


_EFFICIENTNET = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
                 (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
"""Stages of B0: expansion, channels, blocks, stride, kernel."""


def efficientnet(width: float, depth: float, w: Weights) -> None:
    """EfficientNet at 224 x 224: B0 scaled in ``width`` (channels) and ``depth`` (blocks)."""
    inside = _rounded(32 * width)
    x = _swish(w, w.convolve("image", (3, inside), 3, 2))
    for expansion, channels, blocks, stride, kernel in _EFFICIENTNET:
        out = _rounded(channels * width)
        for i in range(math.ceil(blocks * depth)):
            y = _inverted_bottleneck(w, x, (inside, inside * expansion, out), kernel, stride if i == 0 else 1)
            keeps = inside == out and (stride == 1 or i > 0)
            x = w.graph.add("Mul", w.graph.add("Add", x, y), w.number(0.7)) if keeps else y
            inside = out
    last = _rounded(1280 * width)
    x = _swish(w, w.convolve(x, (inside, last), 1))
    w.classify(w.graph.add("Flatten", w.graph.add("GlobalAveragePool", x)), last, 1000)


def _inverted_bottleneck(w: Weights, x: str, channels: tuple[int, int, int], kernel: int, stride: int) -> str:
    """Expand, depth-wise convolution, squeeze and excite, project."""
    inside, middle, out = channels
    y = x if inside == middle else _swish(w, w.convolve(x, (inside, middle), 1))
    y = _swish(w, w.convolve(y, (middle, middle), kernel, stride, groups=middle))
    squeezed = max(1, inside // 4)
    gate = w.graph.add("GlobalAveragePool", y)
    gate = _swish(w, w.convolve(gate, (middle, squeezed), 1))
    gate = w.graph.add("Sigmoid", w.convolve(gate, (squeezed, middle), 1))
    return w.convolve(w.graph.add("Mul", y, gate), (middle, out), 1)


def _swish(w: Weights, x: str) -> str:
    return w.graph.add("Mul", x, w.graph.add("Sigmoid", x))


def _rounded(channels: float) -> int:
    """To a multiple of 8, never more than a tenth below."""
    found = max(8, int(channels + 4) // 8 * 8)
    return found + 8 if found < 0.9 * channels else found


def bert(layers: int, hidden: int, w: Weights) -> None:
    """BERT's encoder on 128 tokens, 64 a head, three classes.

    The vocabulary is cut to 2,048 rows: they are looked up, not computed with.
    """
    add = w.graph.add
    table = w.normal(2048, hidden, fan_in=2)
    x = add("Gather", table, add("Mod", "tokens", w.integers(2048)), axis=0)
    x = _normalised(w, add("Add", x, w.normal(TOKENS, hidden, fan_in=hidden)), hidden)
    for _ in range(layers):
        x = _normalised(w, add("Add", x, _attention(w, x, hidden)), hidden)
        y = w.dense(x, hidden, 4 * hidden)
        # The exact Gelu: x (1 + erf(x / sqrt 2)) / 2, which the runtime fuses.
        erf = add("Erf", add("Div", y, w.number(math.sqrt(2.0))))
        y = add("Mul", add("Mul", y, add("Add", erf, w.number(1.0))), w.number(0.5))
        x = _normalised(w, add("Add", x, w.dense(y, 4 * hidden, hidden)), hidden)
    first = add("Gather", x, w.graph.constant(np.array(0, np.int64)), axis=1)
    w.classify(add("Tanh", w.dense(first, hidden, hidden)), hidden, 3)


def _attention(w: Weights, x: str, hidden: int) -> str:
    add, heads = w.graph.add, hidden // 64
    split = w.integers(0, TOKENS, heads, 64)

    def head(order: list[int]) -> str:
        return add("Transpose", add("Reshape", w.dense(x, hidden, hidden), split), perm=order)

    q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    weights = add("Softmax", add("Div", add("MatMul", q, k), w.number(8.0)), axis=-1)
    mixed = add("Transpose", add("MatMul", weights, v), perm=[0, 2, 1, 3])
    return w.dense(add("Reshape", mixed, w.integers(0, TOKENS, hidden)), hidden, hidden)


def _normalised(w: Weights, x: str, hidden: int) -> str:
    ones: Array = np.ones(hidden, np.float32)
    return w.graph.add(
        "LayerNormalization", x, w.graph.constant(ones), w.graph.constant(np.zeros(hidden, np.float32)), axis=-1
    )


def _models() -> Iterator[HeavyModel]:
    for layers, blocks, bottleneck, accuracy in (
        (18, (2, 2, 2, 2), False, 0.6976), (34, (3, 4, 6, 3), False, 0.7331), (50, (3, 4, 6, 3), True, 0.7613),
        (101, (3, 4, 23, 3), True, 0.7737), (152, (3, 8, 36, 3), True, 0.7831),
    ):  # fmt: skip
        yield HeavyModel(IMAGE, f"resnet{layers}", "resnet", accuracy, partial(resnet, blocks, bottleneck))
    for size, width, depth, accuracy in ((0, 1.0, 1.0, 0.7769), (2, 1.1, 1.2, 0.8061), (4, 1.4, 1.8, 0.8338)):
        yield HeavyModel(IMAGE, f"efficientnet-b{size}", "efficientnet", accuracy, partial(efficientnet, width, depth))
    for name, layers, hidden, accuracy in (
        ("tiny", 2, 128, 0.702), ("mini", 4, 256, 0.748), ("small", 4, 512, 0.776), ("medium", 8, 512, 0.800),
        ("base", 12, 768, 0.8456),
    ):  # fmt: skip
        yield HeavyModel(TEXT, f"bert-{name}", "bert", accuracy, partial(bert, layers, hidden))


MODELS: dict[str, HeavyModel] = {model.name: model for model in _models()}
"""By name."""


class HeavyFamily:
    """The heavy models of one app."""

    def __init__(self, app: App) -> None:
        self.APP = app

    def recipes(self) -> list[HeavyModel]:
        """Lightest of each architecture first."""
        return [model for model in MODELS.values() if model.app is self.APP]

    def fit(self, recipe: HeavyModel) -> Fitted:
        """Draw the weights and write the graph: 3 to 350 MB, seconds at most."""
        weights = Weights(_SEED)
        recipe.write(weights)
        return Fitted(recipe.accuracy, 0.0, weights.graph.serialise(recipe.app), nominal=True)
