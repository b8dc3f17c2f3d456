"""Traces: what is read, what is refused, what is done to them."""

import bz2
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals import (
    ListedArrivals,
    Rates,
    SampledArrivals,
    TraceSpec,
    collect,
    diurnal,
    lists,
    named_shares,
    read_arrivals,
    read_counts,
    read_tweets,
    tweet_files,
    zipf_shares,
)
from sluicegate.simulator.arrivals.trace_files import shown


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_counts_are_read_in_all_three_forms(tmp_path: Path) -> None:
    with_header = read_counts(_write(tmp_path / "a.csv", "second,qps\n0,10\n1,20\n2,30\n"))
    spaced = read_counts(_write(tmp_path / "b.txt", "# a comment\n0 10\n1 20\n\n2 30"))
    single = read_counts(_write(tmp_path / "c.txt", "10\n20\n30\n"))
    for rates in (with_header, spaced, single):
        assert rates.qps.tolist() == [10.0, 20.0, 30.0]
        assert rates.edges.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_step_between_lines_is_held_or_interpolated(tmp_path: Path) -> None:
    held = read_counts(_write(tmp_path / "t.txt", "100 5\n110 25\n120 5\n"))
    assert held.edges.tolist() == [0.0, 10.0, 20.0, 30.0]
    smooth = held.smoothed_to_seconds()
    assert smooth.qps.size == 21
    assert smooth.qps[5] == pytest.approx(15.0)


def test_one_count_a_line_takes_the_step_given(tmp_path: Path) -> None:
    rates = read_counts(_write(tmp_path / "c.txt", "10\n20\n"), step=60.0)
    assert rates.duration == 120.0
    assert rates.expected == 1800.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no count"),
        ("second,qps\n", "holds no count"),
        ("qps,second\n0,10\n1,20\n", "line 1 is .qps,second.; seconds come first"),
        ('"queries";"Time"\n0;10\n', "seconds come first"),
        ("0,10\n1,-3\n", "line 2"),
        ("0,10\n1,nan\n", "line 2"),
        ("0,10\n1,inf\n", "line 2"),
        ("0,10\n0,11\n", "must increase"),
        ("nan,10\n1,11\n", "seconds"),
        ("0,10\n5\n", "line 2"),
        ("0,10,3,4\n", "line 1"),
        ("0,10\nhello\n", "line 2"),
        ("\x00\x01\x02\n", "line 1"),
    ],
)
def test_hostile_counts_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said) as caught:
        read_counts(_write(tmp_path / "bad.csv", text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [(b"", "''"), (b"a" * 39, repr("a" * 39)), (b"a" * 40, repr("a" * 40)), (b"a" * 41, repr("a" * 40) + "...")],
)
def test_a_line_is_shown_up_to_forty_bytes(line: bytes, told: str) -> None:
    assert shown(line) == told


def test_of_a_trace_in_which_nothing_comes_every_app_has_nothing() -> None:
    found = collect(ListedArrivals({"a": np.empty(0), "b": np.empty(0)}, 4.0))
    assert {app: times.size for app, times in found.items()} == {"a": 0, "b": 0}


def test_a_line_without_end_is_refused_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b"1" * 5_000_000)
    with pytest.raises(InvalidInputError, match="more than 1048576 bytes"):
        read_counts(path)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.txt.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % i for i in range(20_000)))[:-2000])
    with pytest.raises(InvalidInputError, match="damaged"):
        read_counts(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_counts(tmp_path / "none.csv")
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_arrivals(tmp_path / "none")
    with pytest.raises(InvalidInputError, match="folder"):
        read_counts(tmp_path)


def test_arrival_lists_are_read_by_app_and_sorted(tmp_path: Path) -> None:
    _write(tmp_path / "b.txt", "2000,1,300\n500,1,300\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"arrival_ms,qos\n100,1\n"))
    listed = read_arrivals(tmp_path)
    assert listed.apps == ("a", "b")
    assert listed.times["b"].tolist() == [0.5, 2.0]
    (times, index), *rest = list(listed.chunks())
    assert not rest
    assert times.tolist() == [0.1, 0.5, 2.0]
    assert index.tolist() == [0, 1, 1]


def test_an_app_without_a_list_is_named(tmp_path: Path) -> None:
    _write(tmp_path / "a.txt", "1\n")
    with pytest.raises(InvalidInputError, match="'bert'"):
        read_arrivals(tmp_path, ["bert"])
    _write(tmp_path / "a.txt", "1\n-5\n")
    with pytest.raises(InvalidInputError, match="line 2"):
        read_arrivals(tmp_path)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InvalidInputError, match="no arrival list"):
        read_arrivals(tmp_path)


def test_scaling_clones_and_moves_only_the_clones() -> None:
    times = np.sort(np.random.default_rng(1).uniform(0, 100, 10_000))
    listed = ListedArrivals({"a": times}, 100.0)
    scaled = listed.scaled(2.5, np.random.default_rng(2)).times["a"]
    assert scaled.size == pytest.approx(25_000, rel=0.02)
    assert np.isin(times, scaled).all()
    assert scaled.min() >= 0.0 and scaled.max() <= 100.0
    assert (np.diff(scaled) >= 0.0).all()
    lone = ListedArrivals({"a": np.array([50.0])}, 100.0).scaled(40.0, np.random.default_rng(3)).times["a"]
    assert lone.size == 40
    assert np.abs(lone - 50.0).max() <= 0.5
    assert np.unique(lone).size == 40
    thinned = listed.scaled(0.25, np.random.default_rng(2)).times["a"]
    assert thinned.size == pytest.approx(2_500, rel=0.1)
    assert np.isin(thinned, times).all()


def test_speed_range_and_repetition_of_rates() -> None:
    rates = Rates.stepped([10.0, 20.0, 30.0])
    fast = rates.faster(2.0)
    assert fast.duration == 1.5
    assert fast.expected == pytest.approx(rates.expected)
    ranged = rates.within(100.0, 500.0)
    assert ranged.qps.tolist() == [100.0, 300.0, 500.0]
    longer = rates.lasting(7.5, repeat=True)
    assert longer.qps.tolist() == [10, 20, 30, 10, 20, 30, 10, 20]
    assert longer.duration == 7.5
    assert rates.lasting(7.5).duration == 3.0


def test_rates_refuse_what_is_no_rate() -> None:
    for bad in ([-1.0], [float("nan")], [float("inf")], [1e12], []):
        with pytest.raises(InvalidInputError):
            Rates.stepped(bad)
    with pytest.raises(InvalidInputError, match="speed"):
        Rates.stepped([1.0]).faster(0.0)
    with pytest.raises(InvalidInputError, match="qps"):
        Rates.stepped([1.0]).within(5.0, 1.0)


def _tweet(second: int, **more: object) -> bytes:
    return orjson.dumps({"created_at": f"Wed Apr 25 00:00:{second:02d} +0000 2018", "id": 1, "text": "x", **more})


def test_tweets_are_counted_per_second_and_the_broken_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [_tweet(1), _tweet(3), _tweet(1), orjson.dumps({"timestamp_ms": "1524614402500", "id": 5})]
    odd = [b'{"delete":{"status":{"id":1}}}', b'{"limit":{"track":1}}']
    broken = [b'{"created_at": "Wed Apr', b"[1]", _tweet(1, timestamp_ms="12")]
    (tmp_path / "30.json.bz2").write_bytes(bz2.compress(b"\n".join(good + odd)))
    (tmp_path / "31.json.gz").write_bytes(gzip.compress(b"\n".join(broken)))
    rates = read_tweets(tweet_files(tmp_path))
    assert rates.qps.tolist() == [2.0, 1.0, 1.0]
    assert read_tweets(tweet_files(tmp_path)) is rates
    (said,) = caplog.messages
    assert "broken lines skipped: 3; tweets read: 4" in said and str(tmp_path) in said
    (tmp_path / "32.json").write_bytes(_tweet(4))
    assert read_tweets(tweet_files(tmp_path)).qps.tolist() == [2.0, 1.0, 1.0, 1.0]


def test_a_file_without_tweets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"not json\nnor this\n")
    with pytest.raises(InvalidInputError, match="0 tweets understood, 2 lines broken"):
        read_tweets(tweet_files(path))
    with pytest.raises(InvalidInputError, match="does not exist"):
        tweet_files(tmp_path / "absent")


def test_tweet_seconds_agree_with_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    rows = [_tweet(0), orjson.dumps({"timestamp_ms": "1524614400000"}), orjson.dumps({"timestamp_ms": "1524614401000"})]
    path.write_bytes(b"\n".join(rows))
    assert read_tweets([path]).qps.tolist() == [2.0, 1.0]


def test_zipf_shares_fall_with_rank() -> None:
    shares = zipf_shares(4, 1.0)
    assert shares.tolist() == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25])
    assert zipf_shares(3, 0.0).tolist() == pytest.approx([1 / 3] * 3)
    assert named_shares(["a", "b"], {"b": 2.0}).tolist() == [0.0, 1.0]
    with pytest.raises(InvalidInputError, match="no such app"):
        named_shares(["a"], {"z": 1.0})


def test_an_even_process_gives_each_second_its_count() -> None:
    rates = Rates.stepped([100.0, 50.0, 0.0, 200.0])
    times = collect(SampledArrivals(rates, ["a"], zipf_shares(1), np.random.default_rng(0), process="uniform"))["a"]
    counts = np.histogram(times, bins=[0, 1, 2, 3, 4])[0]
    assert np.abs(counts - rates.qps).max() <= 1
    assert counts[2] == 0


def test_gamma_gaps_are_bursty_and_poisson_counts_are_not() -> None:
    rates = Rates.stepped([200.0] * 400)

    def dispersion(process: str, shape: float) -> float:
        spec = TraceSpec.model_validate({"format": "generator", "qps": [200, 200], "process": process, "shape": shape})
        source = SampledArrivals(
            rates, ["a"], zipf_shares(1), np.random.default_rng(5), process=spec.process, shape=spec.shape
        )
        counts = np.histogram(collect(source)["a"], bins=np.arange(401))[0]
        assert counts.mean() == pytest.approx(200.0, rel=0.1)
        return float(counts.var() / counts.mean())

    assert dispersion("poisson", 1.0) == pytest.approx(1.0, abs=0.3)
    assert dispersion("gamma", 0.05) > 8.0
    assert dispersion("uniform", 1.0) < 0.1


def test_the_generator_waves_between_low_and_high_and_spikes() -> None:
    calm = diurnal(np.random.default_rng(0), duration=100, low=10, high=90, noise=0.0, spikes=0)
    assert calm.qps[0] == 10.0
    assert calm.qps[50] == pytest.approx(90.0)
    spiky = diurnal(np.random.default_rng(0), duration=100, low=10, high=90, noise=0.0, spikes=4, spike_factor=3.0)
    assert (spiky.qps >= calm.qps).all()
    assert (spiky.qps / calm.qps).max() > 1.5
    with pytest.raises(InvalidInputError):
        diurnal(np.random.default_rng(0), duration=0, low=10, high=90)


def test_a_trace_specification_says_what_it_lacks() -> None:
    for raw in (
        {"format": "generator"},
        {"format": "counts"},
        {"format": "arrivals", "path": "x", "qps": [1, 2]},
        {"format": "counts", "path": "x", "typo": 1},
    ):
        with pytest.raises(ValueError, match=r"range|path|scale|typo"):
            TraceSpec.model_validate(raw)


def test_the_papers_lists_are_read_whole(sluice_data: Path) -> None:
    spec = TraceSpec(format="arrivals", path=sluice_data / "proteus" / "traces" / "zipf_exponential")
    apps = ["mobilenet", "bert", "gpt2"]
    listed = collect(spec.open(apps, np.random.default_rng(0)))
    assert [listed[a].size for a in apps] == [26753, 6845, 2878]
    counts = TraceSpec(format="counts", path=sluice_data / "ramsis" / "twitter_04_25_norm.txt", interpolate="linear")
    assert counts.rates(np.random.default_rng(0)).qps.size == 261


class EvenDraws:
    """A generator whose gaps are all twice their mean and whose phases are a quarter."""

    def spawn(self, count: int) -> list["EvenDraws"]:
        return [EvenDraws() for _ in range(count)]

    def random(self) -> float:
        return 0.25

    def standard_exponential(self, count: int) -> Any:
        return np.full(count, 2.0)

    def standard_gamma(self, shape: float, count: int) -> Any:
        return np.full(count, 2.0 * shape)


@pytest.mark.parametrize(
    ("process", "rare", "frequent"),
    [
        # Twelve arrivals are to come, four in the first second: gaps of 2 / 0.25 = 8 and of 2 / 0.75 of these.
        ("poisson", [1.5], [2 / 3, 1 + (16 / 3 - 4) / 8, 1.5, 1 + (32 / 3 - 4) / 8]),
        ("gamma", [1.5], [2 / 3, 1 + (16 / 3 - 4) / 8, 1.5, 1 + (32 / 3 - 4) / 8]),
        # Each fourth and each 4 / 3, a quarter of that after the start.
        (
            "uniform",
            [0.25, 1.125, 1.625],
            [1 / 12, 5 / 12, 0.75, *(1 + (n / 3 - 4) / 8 for n in (13, 17, 21, 25, 29, 33))],
        ),
    ],
)
def test_arrivals_fall_where_the_rate_so_far_adds_up_to_their_gaps(
    process: Any, rare: list[float], frequent: list[float]
) -> None:
    rates = Rates.stepped([4.0, 8.0])
    draws: Any = EvenDraws()
    shares = named_shares(["rare", "frequent"], {"rare": 0.25, "frequent": 0.75})
    found = collect(SampledArrivals(rates, ["rare", "frequent"], shares, draws, process=process, shape=0.5))
    assert found["rare"].tolist() == pytest.approx(rare)
    assert found["frequent"].tolist() == pytest.approx(frequent)


def test_rates_are_multiplied_and_nothing_is_done_by_a_factor_that_is_not_positive() -> None:
    rates = Rates.stepped([12.0, 20.0, 7.0], 2.0)
    assert rates.times(2.5).qps.tolist() == [30.0, 50.0, 17.5] and rates.times(2.5).duration == 6.0
    assert (rates.peak, rates.expected) == (20.0, 78.0)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        for change, name in ((rates.times, "scale"), (rates.faster, "speed"), (rates.lasting, "duration")):
            with pytest.raises(InvalidInputError, match=name):
                change(wrong)
    with pytest.raises(InvalidInputError, match="need one rate at least"):
        Rates(np.array([0.0, 1.0]), np.array(5.0))


def test_a_list_is_repeated_up_to_as_many_arrivals_as_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_ARRIVALS", 9)
    listed = ListedArrivals({"a": np.array([0.25, 1.5]), "b": np.array([2.0])})
    assert sum(t.size for t in listed.lasting(6.0, repeat=True).times.values()) == 9
    with pytest.raises(InvalidInputError, match=r"makes 12 arrivals; at most 9"):
        listed.lasting(6.5, repeat=True)
    assert listed.scaled(3.0, np.random.default_rng(0)).times["b"].size == 3
    with pytest.raises(InvalidInputError, match="makes more than 9 arrivals"):
        listed.scaled(3.5, np.random.default_rng(0))


def test_the_generators_wave_is_as_long_as_the_run_or_a_minute_however_fast_it_is_played() -> None:
    calm = {"noise": 0.0, "spikes": 0}
    plain = TraceSpec.model_validate({"qps": [10, 90], "generator": calm})
    quick = TraceSpec.model_validate({"qps": [10, 90], "speed": 2.0, "generator": calm})
    rng = np.random.default_rng(0)
    assert (plain.rates(rng).duration, quick.rates(rng).duration) == (60.0, 60.0)
    for duration in (30.0, 100.0):
        assert plain.rates(rng, duration).duration == quick.rates(rng, duration).duration == duration
        assert plain.rates(rng, duration).qps[int(duration / 2)] == pytest.approx(90.0)
        assert quick.rates(rng, duration).qps[int(duration)] == pytest.approx(180.0), "halfway, two steps a second"
