"""Arrivals: trace files and a generator in, sorted arrival times by app out. Vectorised and seeded."""

from sluicegate.simulator.arrivals.counts import read_counts
from sluicegate.simulator.arrivals.generator import diurnal
from sluicegate.simulator.arrivals.lists import ListedArrivals, read_arrival_file, read_arrivals
from sluicegate.simulator.arrivals.rates import Rates
from sluicegate.simulator.arrivals.sampling import ArrivalSource, Chunk, Process, SampledArrivals, collect
from sluicegate.simulator.arrivals.shares import named_shares, zipf_shares
from sluicegate.simulator.arrivals.trace_fields import GeneratorSpec, TraceSpec
from sluicegate.simulator.arrivals.tweets import read_tweets, tweet_files

__all__ = [
    "ArrivalSource",
    "Chunk",
    "GeneratorSpec",
    "ListedArrivals",
    "Process",
    "Rates",
    "SampledArrivals",
    "TraceSpec",
    "collect",
    "diurnal",
    "named_shares",
    "read_arrival_file",
    "read_arrivals",
    "read_counts",
    "read_tweets",
    "tweet_files",
    "zipf_shares",
]
