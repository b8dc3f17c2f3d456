"""Asking from Python: one query, goals, and many at once.

python examples/ask.py clouds                                  # a running `sluice up`
python examples/ask.py clouds kafka://127.0.0.1:9092
"""

import asyncio
import sys

import numpy as np

from sluicegate_client import Answer, Client, ClientError


def shown(answer: Answer) -> str:
    """An answer in a line; or why there is none."""
    outcome = answer.outcome
    if not answer.outputs:
        return f"{outcome.kind} ({outcome.reason}): {outcome.detail}"
    values = {name: np.asarray(a).round(3).tolist() for name, a in answer.outputs.items()}
    return f"{outcome.variant} ({outcome.accuracy:.1%}), {1e3 * (outcome.at - outcome.arrival):.1f} ms: {values}"


async def main(app: str, url: str) -> None:
    """Ask about points, as examples/numpy_model.py makes them."""
    point = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    async with Client(url) as client:
        print("plain      ", shown(await client.infer(app, {"point": point})))
        print("with goals ", shown(await client.infer(app, {"point": point}, latency_ms=50, accuracy=0.5)))
        print("impossible ", shown(await client.infer(app, {"point": point}, accuracy=0.9999)))
        many = await client.infer_batch(app, [{"point": point + i / 100} for i in range(100)], latency_ms=5000)
        print(f"batch       {sum(answer.outcome.on_time for answer in many)} of {len(many)} in time")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8080"))
    except ClientError as error:  # nothing answers there, or it does not serve the app
        sys.exit(str(error))
