"""A claim check: the input lies in an object store, the query says where, and so does an outcome that is too large.

    export SLUICE_OBJECTS__PREFIXES='["file:///tmp/sluice-in/"]' SLUICE_OBJECTS__RESULTS=file:///tmp/sluice-out/
    sluice up                              # and, in a second terminal:
    python examples/large_input.py clouds

The model is that of examples/numpy_model.py. Any store that fsspec knows does as well (``pip install s3fs`` for s3://):
then the data is put there with fsspec instead of into a folder.
"""

import asyncio
import sys
from pathlib import Path

import numpy as np

from sluicegate_client import Client, ClientError, Reference, Tensor


def put(folder: Path) -> Reference:
    """Sixteen points into ``folder``, raw, as they would stand in a body."""
    points = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "points").write_bytes(Tensor.to(points).data)
    return Reference.to(f"file://{folder}/points", points)


async def main(app: str, url: str, folder: Path) -> None:
    """Ask about what lies in ``folder``, and about what does not."""
    reference = put(folder)
    async with Client(url) as client:
        answer = await client.infer(app, {"point": reference}, latency_ms=5000)
        print(answer.outcome.kind, answer.outcome.detail or "", {n: v.tolist() for n, v in answer.outputs.items()})
        other = Reference(reference.datatype, reference.shape, f"{reference.ref}-gone", "0" * 64, reference.bytes)
        try:
            gone = await client.infer(app, {"point": other}, latency_ms=5000)
            print(gone.outcome.kind, gone.outcome.reason, gone.outcome.detail)
        except ClientError as error:  # as fronts tell it
            print(error)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    at = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8080"
    try:
        asyncio.run(main(sys.argv[1], at, Path(sys.argv[3]) if len(sys.argv) > 3 else Path("/tmp/sluice-in")))
    except ClientError as error:  # nothing answers there, or it does not serve the app
        sys.exit(str(error))
