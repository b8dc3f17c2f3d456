"""Inputs to send: held-out samples of the demo's apps with their labels, random ones of any other app's shapes."""

from domain.app import App
from profiles.demo.build import FAMILIES, samples
from sluice.sending import Samples, samples_of


def demo_samples(app: App, seed: int = 0) -> Samples:
    """Samples for ``app``, with labels where they are known."""
    if app.name not in FAMILIES:
        return samples_of(app, None, None, seed)
    known = samples(app.name)
    return samples_of(app, known.inputs, known.labels, seed)
