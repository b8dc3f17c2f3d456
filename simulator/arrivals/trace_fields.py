"""A trace as a user writes it down (scenario files, command line), and the arrivals it stands for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.formats.field_types import NotNegative, PathOfFile, Positive
from sluicegate.simulator.arrivals.counts import read_counts
from sluicegate.simulator.arrivals.generator import diurnal
from sluicegate.simulator.arrivals.lists import read_arrivals
from sluicegate.simulator.arrivals.rates import Floats, Rates
from sluicegate.simulator.arrivals.sampling import ArrivalSource, Process, SampledArrivals
from sluicegate.simulator.arrivals.shares import named_shares, zipf_shares
from sluicegate.simulator.arrivals.tweets import read_tweets, tweet_files


class GeneratorSpec(BaseModel):
    """The wave of the generator (its range is ``qps``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    period_s: Positive | None = Field(default=None, description="Seconds of a wave; default: the whole duration.")
    noise: float = Field(
        default=0.05, ge=0.0, le=2.0, description="Standard deviation of the logarithm of a second's rate."
    )
    spikes: int = Field(default=3, ge=0, le=1_000_000)
    spike_factor: float = Field(default=1.5, ge=1.0, le=1e3)
    spike_s: Positive = 5.0


_OF_RATES = ("step_s", "interpolate", "process", "shape", "zipf", "shares")
"""Fields that say how arrivals are drawn from a rate."""


class TraceSpec(BaseModel):
    """Where arrivals come from and what is done to them, in this order: read, speed, qps, scale, duration, draw."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["arrivals", "counts", "twitter", "generator"] = "generator"
    path: PathOfFile | None = Field(default=None, description="File or folder; not for the generator.")
    step_s: Positive | None = Field(default=None, description="counts: seconds a line stands for.")
    interpolate: Literal["hold", "linear"] = Field(default="hold", description="counts: what happens between lines.")
    repeat: bool = Field(default=False, description="Start again where the trace is shorter than the duration.")
    speed: Positive = Field(default=1.0, description="The same arrivals in 1/speed of the time.")
    qps: tuple[NotNegative, NotNegative] | None = Field(
        default=None, description="Rescale to [low, high] queries/s; the generator's range."
    )
    scale: Positive = Field(
        default=1.0, description="Arrivals times this; listed ones are cloned, clones jittered by 0.5 s."
    )
    process: Process = Field(default="poisson", description="How arrivals fall within the rate.")
    shape: float = Field(default=1.0, ge=1e-3, le=1e6, description="gamma: shape of the gaps (0.05 is very bursty).")
    zipf: float = Field(default=0.0, ge=0.0, le=50.0, description="Shares over apps in their order; 0 is equal shares.")
    shares: Mapping[str, NotNegative] | None = Field(default=None, description="Weights by app, instead of zipf.")
    generator: GeneratorSpec = Field(default_factory=GeneratorSpec)

    @model_validator(mode="after")
    def _consistent(self) -> "TraceSpec":
        if self.format == "generator" and self.qps is None:
            raise ValueError("the generator needs its range: qps: [low, high]")
        if self.format != "generator" and self.path is None:
            raise ValueError(f"format {self.format} needs a path")
        if self.format == "arrivals" and self.qps is not None:
            raise ValueError("listed arrivals are replayed as they are: use scale instead of qps")
        for name in _OF_RATES if self.format == "arrivals" else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: listed arrivals are replayed as they are; leave it out")
        if self.shares is not None and self.zipf:
            raise ValueError("shares and zipf: give one of them")
        if self.shape != 1.0 and self.process != "gamma":
            raise ValueError(f"shape: does nothing where process is {self.process}; leave it out, or choose gamma")
        return self

    def open(self, apps: Sequence[str], rng: Generator, duration: float | None = None) -> ArrivalSource:
        """The arrivals of ``apps``. ``duration``: seconds (default: the trace's own; the generator's is 60).

        Raises InvalidInputError where the file cannot be understood. Same generator state, same arrivals.
        """
        if self.format == "arrivals":
            listed = read_arrivals(_given(self.path), apps)
            if self.speed != 1.0:
                listed = listed.faster(self.speed)
            if self.scale != 1.0:
                listed = listed.scaled(self.scale, rng)
            return listed if duration is None else listed.lasting(duration, repeat=self.repeat)
        rates = self.rates(rng, duration)
        return SampledArrivals(rates, apps, self._shares(apps), rng, process=self.process, shape=self.shape)

    def rates(self, rng: Generator, duration: float | None = None) -> Rates:
        """The rate over time that arrivals are drawn from. Raises InvalidInputError for listed arrivals."""
        rates = self._read(rng, duration)
        if self.interpolate == "linear":
            rates = rates.smoothed_to_seconds()
        if self.speed != 1.0:
            rates = rates.faster(self.speed)
        if self.qps is not None and self.format != "generator":
            rates = rates.within(*self.qps)
        if self.scale != 1.0:
            rates = rates.times(self.scale)
        return rates if duration is None else rates.lasting(duration, repeat=self.repeat)

    def _read(self, rng: Generator, duration: float | None) -> Rates:
        match self.format:
            case "counts":
                return read_counts(_given(self.path), step=self.step_s)
            case "twitter":
                return read_tweets(tweet_files(_given(self.path)))
            case "generator":
                g = self.generator
                low, high = self.qps or (0.0, 0.0)
                return diurnal(
                    rng,
                    duration=(60.0 if duration is None else duration) * self.speed,
                    low=low,
                    high=high,
                    period=g.period_s,
                    noise=g.noise,
                    spikes=g.spikes,
                    spike_factor=g.spike_factor,
                    spike_s=g.spike_s,
                )
            case _:
                raise InvalidInputError("traces.format", "listed arrivals have no rate")

    def _shares(self, apps: Sequence[str]) -> Floats:
        return zipf_shares(len(apps), self.zipf) if self.shares is None else named_shares(apps, self.shares)


def _given(path: Path | None) -> Path:
    if path is None:
        raise InvalidInputError("traces.path", "is missing; name a file or folder")
    return path
