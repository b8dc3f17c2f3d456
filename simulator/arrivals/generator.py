"""A trace for those who have none: a day's wave with noise and short spikes."""

import numpy as np
from numpy.random import Generator

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals.rates import Rates, check_range


def diurnal(
    rng: Generator,
    *,
    duration: float,
    low: float,
    high: float,
    period: float | None = None,
    noise: float = 0.05,
    spikes: int = 3,
    spike_factor: float = 1.5,
    spike_s: float = 5.0,
) -> Rates:
    """One rate a second: a raised cosine from ``low`` up to ``high`` queries/s and back every ``period`` seconds.

    ``noise``: standard deviation of the logarithm of each second's rate. ``spikes`` of ``spike_s`` seconds at random
    places jump to ``spike_factor`` times the rate and fall back linearly. Raises InvalidInputError for nonsense.
    """
    if not 1.0 <= duration <= 1e8:
        raise InvalidInputError("duration", f"{duration} is not within 1..1e8 seconds")
    check_range(low, high)
    if not (0.0 <= noise <= 2.0 and 0 <= spikes <= 1_000_000 and 1.0 <= spike_factor <= 1e3 and spike_s > 0.0):
        raise InvalidInputError(
            "generator", "noise is within 0..2, spikes 0..1e6, spike_factor 1..1000, spike_s above 0"
        )
    period = duration if period is None else period
    if period <= 0.0:
        raise InvalidInputError("period", f"{period} is not a positive number of seconds")
    seconds = np.arange(int(np.ceil(duration)), dtype=np.float64)
    wave = low + (high - low) * (1.0 - np.cos(2.0 * np.pi * seconds / period)) / 2.0
    wave *= np.exp(noise * rng.standard_normal(seconds.size))
    boost = np.ones_like(wave)
    for start in np.sort(rng.uniform(0.0, duration, spikes)):
        age = seconds - start
        rising = (age >= 0.0) & (age < spike_s)
        boost[rising] = np.maximum(boost[rising], 1.0 + (spike_factor - 1.0) * (1.0 - age[rising] / spike_s))
    return Rates.stepped(wave * boost).lasting(duration)
