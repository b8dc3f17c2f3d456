"""Anderson mixing: the fixed point of a nearly linear map from a few of its last iterates (Walker and Ni, 2011).

Value iteration and power iteration are linear while the policy stays the same, and their slow modes are few: mixing the
last iterates so that their residuals cancel removes them. The caller's own stopping rule decides what is good enough.
"""

import numpy as np

from sluicegate.planner.mdp.mdp_model import Array

_DEPTH = 8


class Mixer:
    """Anderson mixing of a fixed-point iteration. ``next(x, image)``: where to apply the map next, having found that it
    takes ``x`` to ``image``."""

    def __init__(self) -> None:
        self._images: list[Array] = []
        self._residuals: list[Array] = []

    def next(self, x: Array, image: Array) -> Array:
        """The mix of the last images whose residuals cancel best; ``image`` itself while the residual grows."""
        residual = (image - x).ravel()
        if self._residuals and _norm(residual) > 1.5 * _norm(self._residuals[-1]):
            self._images.clear()
            self._residuals.clear()
        self._images.append(image)
        self._residuals.append(residual)
        if len(self._images) > _DEPTH:
            del self._images[0], self._residuals[0]
        if len(self._images) < 3:
            return image
        steps = np.stack([self._residuals[-1] - r for r in self._residuals[:-1]])
        gram = steps @ steps.T
        gram[np.diag_indices_from(gram)] *= 1.0 + 1e-10
        try:
            mix = np.linalg.solve(gram, steps @ self._residuals[-1])
        except np.linalg.LinAlgError:
            return image
        if not np.isfinite(mix).all() or np.abs(mix).sum() > 1e4:
            return image
        moved = image.copy()
        for weight, older in zip(mix, self._images[:-1], strict=True):
            moved -= weight * (image - older)
        return moved


def _norm(x: Array) -> float:
    return float(np.sqrt(x @ x))
