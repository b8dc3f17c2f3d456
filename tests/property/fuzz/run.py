"""Looks for bytes that a decoder neither reads nor refuses: ``make fuzz SECONDS=60``, or ``RUNS=200000 SEED=7``.

With atheris (libFuzzer) inputs are changed towards lines that no input has reached yet; where it is not installed, at
random. All decoders share the time. By a number of runs it begins without what earlier runs kept, so that the speed of
the machine does not decide what is tried. What was found is written to reports/fuzz/, and the exit code is not 0.
"""

import argparse
import random
import shutil
import sys
import time
from pathlib import Path

FOUND = Path("reports/fuzz")
_SLOW = 10.0
"""Seconds that one input may take."""


def _named(data: bytes, names: list[str]) -> tuple[str, bytes]:
    """Which decoder an input is for, by its first byte, and what that gets."""
    return names[(data[0] if data else 0) % len(names)], data[1:]


def guided(seconds: int, runs: int, seed: int) -> None:
    """Never returns: libFuzzer ends the process after ``seconds``, or after ``runs`` where that is not 0."""
    import atheris

    with atheris.instrument_imports(include=["sluicegate"], enable_loader_override=False):
        from tests.property.fuzz.decoders import DECODERS
    names = sorted(DECODERS)
    corpus = FOUND / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        for which, value in enumerate(DECODERS[name].seeds):
            (corpus / f"seed-{number}-{which}").write_bytes(bytes([number]) + value)

    def tried(data: bytes) -> None:
        name, rest = _named(data, names)
        DECODERS[name](rest)

    options = [
        f"-runs={runs}" if runs else f"-max_total_time={seconds}",
        f"-timeout={_SLOW:.0f}",
        "-max_len=8192",
        "-rss_limit_mb=3072",
        "-verbosity=1",
        f"-seed={seed}",
    ]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={FOUND}/", str(corpus)], tried)
    atheris.Fuzz()


def at_random(seconds: float, runs: int, seed: int) -> int:
    """Inputs tried. Raises what a decoder raised."""
    from tests.property.fuzz.decoders import DECODERS

    rng, end, tries = random.Random(seed), time.monotonic() + seconds, 0
    names = sorted(DECODERS)
    while tries < runs if runs else time.monotonic() < end:
        decoder = DECODERS[rng.choice(names)]
        value = bytearray(rng.choice(decoder.seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(value) + 1)
            value[at : at + rng.choice((0, 1, 1, 2, 30))] = rng.randbytes(rng.randint(0, 4))
        began = time.monotonic()
        try:
            decoder(bytes(value))
            assert time.monotonic() - began < _SLOW, f"took {time.monotonic() - began:.1f} s"
        except BaseException:
            FOUND.mkdir(parents=True, exist_ok=True)
            (FOUND / "found").write_bytes(value)
            raise
        tries += 1
    return tries


def main() -> None:
    """By the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument("--runs", type=int, default=0, help="inputs instead of seconds")
    options.add_argument("--seed", type=int, help="of what is drawn (default: another each time)")
    options.add_argument("--again", type=Path, help="a file of reports/fuzz/ that is tried once")
    asked = options.parse_args()
    if asked.again is not None:
        from tests.property.fuzz.decoders import DECODERS

        name, rest = _named(asked.again.read_bytes(), sorted(DECODERS))
        sys.stdout.write(f"{name}: {'read' if DECODERS[name](rest) else 'refused'}\n")
        return
    seed = random.randrange(1, 1 << 31) if asked.seed is None else asked.seed
    if asked.runs:
        shutil.rmtree(FOUND / "corpus", ignore_errors=True)
    try:
        import atheris  # noqa: F401
    except ImportError:
        sys.stdout.write(f"atheris is not installed: at random, by seed {seed}\n")
        sys.stdout.write(f"{at_random(asked.seconds, asked.runs, seed)} inputs, none found\n")
        return
    guided(asked.seconds, asked.runs, seed)


if __name__ == "__main__":
    main()
