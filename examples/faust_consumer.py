"""A Faust agent on the results of an app: how many queries each variant answered, how many were in time.

    pip install 'sluicegate[faust]'
    SLUICE_APP=clouds faust -A examples.faust_consumer worker -l info      # from the repository's folder

``SLUICE_BROKER`` (kafka://127.0.0.1:9092) and ``SLUICE_PREFIX`` (sluice) say where.
"""

import json
import os
import tempfile
from collections import Counter
from typing import Any

import faust

PREFIX = os.environ.get("SLUICE_PREFIX", "sluice")
APP = os.environ.get("SLUICE_APP", "digits")

app = faust.App(
    f"{PREFIX}-{APP}-tally",
    broker=os.environ.get("SLUICE_BROKER", "kafka://127.0.0.1:9092"),
    topic_disable_leader=True,
    web_enabled=False,
    datadir=f"{tempfile.gettempdir()}/{PREFIX}-{APP}-tally",
    consumer_auto_offset_reset="earliest",
)
results = app.topic(f"{PREFIX}.app.{APP}.results", value_serializer="raw")
tally: Counter[str] = Counter()


@app.agent(results)
async def count(outcomes: Any) -> None:
    """Count outcomes as they come; each value is the response's JSON body, raw tensors behind it for who asked so."""
    async for event in outcomes.events():
        length = event.headers.get("inference-header-content-length")
        outcome = json.loads(event.value[: int(length)] if length else event.value)
        parameters = outcome["parameters"]
        how = "late" if parameters["late"] else parameters["kind"]
        tally[f"{outcome.get('model_version', 'nobody')} {how}"] += 1
        if sum(tally.values()) % 20 == 0:
            print(dict(tally), flush=True)
