"""Arrivals: trace files and a generator in, sorted arrival times by app out. Vectorised and seeded."""

from simulator.arrivals.counts import read_counts
from simulator.arrivals.generator import diurnal
from simulator.arrivals.lists import ListedArrivals, read_arrival_file, read_arrivals
from simulator.arrivals.rates import Rates
from simulator.arrivals.sampling import ArrivalSource, Chunk, Process, SampledArrivals, collect
from simulator.arrivals.shares import named_shares, zipf_shares
from simulator.arrivals.spec import GeneratorSpec, TraceSpec
from simulator.arrivals.tweets import read_tweets, tweet_files

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
