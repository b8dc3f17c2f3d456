"""Inputs to send: held-out samples of the demo's apps with their labels, random ones of any other app's shapes."""

from profiles.demo import held_out

from domain.app import App
from sluice.sending import Samples, samples_of


def demo_samples(app: App, seed: int = 0) -> Samples:
    """Bodies for ``app``; its labels where they are known."""
    known = held_out(app.name)
    if known is None:
        return samples_of(app, None, None, seed)
    inputs, labels = known
    return samples_of(app, inputs, labels, seed)
