"""Inputs to send: held-out samples of the demo's apps with their labels, random ones of any other app's shapes."""

from domain.app import App
from profiles.demo.build import FAMILIES, samples
from sluice.sending import Samples, samples_of


def demo_samples(app: App, *, rows: int = 1, seed: int = 0) -> Samples:
    """Samples for ``app``, ``rows`` a query, with labels where they are known."""
    if app.name not in FAMILIES:
        return samples_of(app, None, None, rows=rows, seed=seed)
    known = samples(app.name)
    return samples_of(app, known.inputs, known.labels, rows=rows, seed=seed)
