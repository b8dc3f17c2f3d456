"""Inputs to send: held-out samples of demo apps and registered ones, with labels; random ones of any other app."""

from pathlib import Path

import numpy as np

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor, cut
from sluicegate.executors.dtypes import data_of
from sluicegate.executors.evaluation import true_lengths
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.demo.build_models import FAMILIES, samples
from sluicegate.profiles.registration.validation_set import ValidationSet
from sluicegate.sluice.load.open_loop_client import Samples, samples_of


def demo_samples(app: App, *, rows: int = 1, seed: int = 0) -> Samples:
    """Samples for ``app``, ``rows`` a query, with labels where they are known."""
    if app.name not in FAMILIES:
        return samples_of(app, None, None, rows=rows, seed=seed)
    known = samples(app.name)
    return samples_of(app, known.inputs, known.labels, rows=rows, seed=seed)


def app_samples(app: App, home: Path, *, rows: int = 1, seed: int = 0) -> Samples:
    """As ``demo_samples``; for an app registered in ``home``, rows of its validation set."""
    saved = Registered(home).samples(app.name)
    if not saved:
        return demo_samples(app, rows=rows, seed=seed)
    if not 1 <= rows <= app.max_rows:
        raise InvalidInputError("rows", f"{rows}; {app.name} takes 1 to {app.max_rows} rows a query")
    *inputs, truth = saved
    queries = len(truth) // rows
    tensors = [
        tuple(
            Tensor(s.name, s.datatype, (rows, *s.row_shape), data_of(a[i * rows : (i + 1) * rows]))
            for s, a in zip(app.inputs, inputs, strict=True)
        )
        for i in range(queries)
    ]
    if any(s.varying for s in app.inputs):  # as users send them: without the zeros that they were kept with
        kept = ValidationSet({s.name: a for s, a in zip(app.inputs, inputs, strict=True)}, truth)
        lengths = true_lengths(app.inputs, kept)[: queries * rows].reshape(queries, rows).max(axis=1).tolist()
        tensors = [cut(app.inputs, query, length) for query, length in zip(tensors, lengths, strict=True)]
    labels = truth[: queries * rows].reshape(queries, rows) if truth.dtype.kind == "i" else None
    return Samples(app.name, tensors, None if labels is None else labels.astype(np.int64))
