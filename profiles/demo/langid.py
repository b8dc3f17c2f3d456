"""``langid``: which language a short text is in, from its first 64 bytes. An extra: it needs Django, for data alone.

The texts are the messages that Django's interface is translated into; its code is not run. Rules. A message belongs to
the rows for building, held out or to ask about by a hash of its English original, so that no two translations of one
message are on two sides, and a text that was also seen on a side before is left out. The languages are the 63 with
most messages, without regional forms of one that is there already. The model is multinomial naive Bayes on hashed
byte n-grams: counting is all the training there is. The knobs are the n-grams' length and the number of buckets.
"""

import gettext
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.profiles.demo.dataset import Dataset
from sluicegate.profiles.demo.features import Array
from sluicegate.profiles.demo.fitting import Fitted, share_right

LENGTH = 64
"""Bytes looked at; shorter texts are filled with zeros."""
_CODES = (
    "af ar az be bg ca ckb cs cy da de dsb el en eo es et eu fa fi fr ga gd gl he hr hsb hu ia id is it ja ka ko ky lt "
    "lv mk ml mn mr ms nb nl nn pl pt ro ru sk sl sq sr sr_Latn sv tg tr ug uk vi zh_Hans zh_Hant"
)
LANGUAGES = tuple(_CODES.split())
"""Codes, by label."""
CLASSES = len(LANGUAGES)
APP = App(
    name="langid",
    slo=0.1,
    inputs=(TensorSpec("text", "UINT8", (LENGTH,)),),
    outputs=(TensorSpec("scores", "FP32", (CLASSES,)), TensorSpec("label", "INT64", ())),
)
_LEAST_BYTES = 8
_SIDES = (1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0)
"""Where a message belongs, by its hash."""
_PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%[a-z]|\{\w*\}|<[^>]*>|&\w+;|[\s\d]+")
_MULTIPLIERS = (1_000_003, 10_007, 101)
"""Of the bytes of an n-gram, last one first."""


@dataclass(frozen=True, slots=True)
class NGrams:
    """A variant: n-grams of ``order`` bytes, hashed into ``buckets``."""

    name: str
    family: str
    order: int
    buckets: int


def recipes() -> list[NGrams]:
    """From the smallest to the largest."""
    sizes = ((1, 256), (2, 1024), (2, 4096), (3, 4096), (3, 16384))
    return [NGrams(f"gram{order}x{buckets}", "ngram", order, buckets) for order, buckets in sizes]


def fit(recipe: NGrams) -> Fitted:
    """Count, measure on held-out rows, write the graph."""
    known = dataset()
    table = _table(recipe, known)
    scores = _scores(recipe, table, known.held_out)
    right, error = share_right(scores.argmax(1), known.held_out_labels)
    return Fitted(right, error, _graph(recipe, table))


@lru_cache(maxsize=1)
def dataset() -> Dataset:
    """Texts as bytes [n, 64], labels as in LANGUAGES. ConfigurationError without Django."""
    build, held_out, _ = _sides()
    return Dataset(*_arrays(build), *_arrays(held_out), classes=CLASSES)


@lru_cache(maxsize=1)
def asked() -> tuple[Array, Array]:
    """Texts and labels to ask about. Raises ConfigurationError as ``dataset`` does."""
    return _arrays(_sides()[2])


def _sides() -> tuple[list[tuple[bytes, int]], ...]:
    """For building, held out, to ask about: no text is on two of them."""
    build, held_out, asked = _texts()
    seen = {text for text, _ in build}
    held_out = [(text, label) for text, label in held_out if text not in seen]
    seen |= {text for text, _ in held_out}
    return build, held_out, [(text, label) for text, label in asked if text not in seen]


def _arrays(rows: list[tuple[bytes, int]]) -> tuple[Array, Array]:
    texts = np.frombuffer(b"".join(text.ljust(LENGTH, b"\0") for text, _ in rows), np.uint8).reshape(-1, LENGTH)
    return texts, np.array([label for _, label in rows], np.int64)


def _texts() -> list[list[tuple[bytes, int]]]:
    """For building, held out, to ask about: each text once a language and side, in a fixed order."""
    sides: tuple[dict[tuple[bytes, int], None], ...] = ({}, {}, {})
    for label, messages in enumerate(_messages()):
        for original, text in sorted(messages.items()):
            cleaned = _PLACEHOLDER.sub(" ", text).strip().lower().encode()[:LENGTH]
            if len(cleaned) >= _LEAST_BYTES:
                sides[_SIDES[zlib.crc32(original.encode()) % len(_SIDES)]][cleaned, label] = None
    return [list(side) for side in sides]


@lru_cache(maxsize=1)
def _messages() -> list[dict[str, str]]:
    """For each language: English original -> translation."""
    spec = find_spec("django")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("the texts are not installed: pip install 'sluicegate[langid]' (Django's messages)")
    found: dict[str, dict[str, str]] = {code: {} for code in LANGUAGES}
    for root in spec.submodule_search_locations:
        for path in sorted(Path(root).rglob("locale/*/LC_MESSAGES/django.mo")):
            if path.parts[-3] in found:
                found[path.parts[-3]].update(_entries(path))
    # The English catalogue is empty: its messages are the originals that the others translate.
    found["en"] = {original: original for messages in list(found.values()) for original in messages}
    if empty := [code for code, messages in found.items() if not messages]:
        raise ConfigurationError(f"this Django has no messages in {empty[0]!r}; install release 5.2")
    return [found[code] for code in LANGUAGES]


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Translated messages of a catalogue, plural forms left out."""
    with path.open("rb") as file:
        translations = gettext.GNUTranslations(file)
    catalogue: dict[object, str] = vars(translations)["_catalog"]
    for original, text in catalogue.items():
        if isinstance(original, str) and original and text:
            yield original.rpartition("\x04")[2], text


def _buckets(recipe: NGrams, texts: Array) -> Array:
    """[n, positions] bucket of the n-gram at each position; ``buckets`` itself where the text has ended."""
    bytes_ = texts.astype(np.int64)
    width = LENGTH - recipe.order + 1
    parts = [bytes_[:, i : i + width] for i in range(recipe.order)]
    hashed = sum((part * m for part, m in zip(parts[::-1], _multipliers(recipe), strict=True)), np.int64(0))
    return np.where(parts[-1] == 0, recipe.buckets, hashed % recipe.buckets)


def _multipliers(recipe: NGrams) -> tuple[int, ...]:
    """For the last byte first. Single bytes need no hash."""
    return (1,) if recipe.order == 1 else _MULTIPLIERS[: recipe.order]


def _table(recipe: NGrams, known: Dataset) -> Array:
    """[buckets + 1, languages] log-probability of a bucket, centred over languages; the last row is zero."""
    buckets = _buckets(recipe, known.inputs)
    cells = buckets * CLASSES + known.labels[:, None]
    counts = np.bincount(cells.ravel(), minlength=(recipe.buckets + 1) * CLASSES).reshape(-1, CLASSES)
    smoothed = counts[: recipe.buckets] + 0.1
    logs = np.log(smoothed / smoothed.sum(0))
    logs -= logs.mean(1, keepdims=True)
    table: Array = np.concatenate([logs, np.zeros((1, CLASSES))]).astype(np.float32)
    return table


def _scores(recipe: NGrams, table: Array, texts: Array) -> Array:
    """[n, languages]; in parts, for each position of each text takes a row of the table."""
    buckets = _buckets(recipe, texts)
    scores: Array = np.concatenate([table[part].sum(1) for part in np.array_split(buckets, 1 + len(texts) // 500)])
    return scores


def _graph(recipe: NGrams, table: Array) -> bytes:
    from onnx import TensorProto

    from sluicegate.profiles.demo.graphs import Graph

    def number(value: int) -> Array:
        return np.array([value], np.int64)

    graph = Graph()
    width = LENGTH - recipe.order + 1
    text = graph.add("Cast", "text", to=TensorProto.INT64)
    axis = graph.constant(number(1))
    parts = [
        graph.add("Slice", text, graph.constant(number(i)), graph.constant(number(i + width)), axis)
        for i in range(recipe.order)
    ]
    hashed = ""
    for part, multiplier in zip(parts[::-1], _multipliers(recipe), strict=True):
        term = graph.add("Mul", part, graph.constant(number(multiplier)))
        hashed = graph.add("Add", hashed, term) if hashed else term
    bucket = graph.add("Mod", hashed, graph.constant(number(recipe.buckets)))
    ended = graph.add("Equal", parts[-1], graph.constant(number(0)))
    bucket = graph.add("Where", ended, graph.constant(number(recipe.buckets)), bucket)
    rows = graph.add("Gather", graph.constant(table), bucket, axis=0)
    scores = graph.add("ReduceSum", rows, axis, keepdims=0, output="scores")
    graph.add("ArgMax", scores, axis=1, keepdims=0, output="label")
    return graph.serialise(APP)
