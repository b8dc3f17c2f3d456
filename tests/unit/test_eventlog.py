"""Recording decisions: deciding goes on where it cannot be written, and what was cut off replays up to there."""

import io
from collections.abc import Sequence
from pathlib import Path

from domain.events import Woke
from stages.eventlog import Recorded, encode_step, read_steps


class Idle:
    def handle(self, event: Woke, now: float) -> Sequence[str]:
        return ()


class Full(io.StringIO):
    name = "log"
    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise OSError(27, "File too large")


def test_where_a_log_cannot_be_written_deciding_goes_on() -> None:
    full = Full()
    recorded = Recorded(Idle(), full)
    for second in range(3):
        assert recorded.handle(Woke(), float(second)) == ()
    assert full.tries == 1


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    line = encode_step(Woke(), 1.0, ())
    file = tmp_path / "log.jsonl"
    file.write_bytes(line + b"\n" + line + b"\n" + line[:-5])
    assert [now for _, now, _ in read_steps(file)] == [1.0, 1.0]
