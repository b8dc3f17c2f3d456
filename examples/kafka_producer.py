"""A producer that knows nothing of Sluicegate: aiokafka and JSON. It writes queries and reads their outcomes.

    python examples/kafka_producer.py 127.0.0.1:9092 clouds point 16 [prefix]

A query is an Open Inference Protocol v2 body; its id is the CloudEvents attribute ``ce_id`` (or ``id`` in the body).
What it asks is in ``parameters``. The topics are ``<prefix>.app.<app>.queries`` and ``<prefix>.app.<app>.results``.
"""

import asyncio
import json
import random
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

QUERIES = 20


async def main(servers: str, app: str, name: str, features: int, prefix: str = "sluice") -> None:
    """Ask QUERIES queries at once; print how each ended."""
    results = f"{prefix}.app.{app}.results"
    consumer = AIOKafkaConsumer(results, bootstrap_servers=servers, auto_offset_reset="latest")
    producer = AIOKafkaProducer(bootstrap_servers=servers)
    try:
        await producer.start()
        if results not in (await producer.client.fetch_all_metadata()).topics():
            sys.exit(f"there is no topic {results}: is {app} served on this broker, under this prefix?")
        await consumer.start()
        await consumer.seek_to_end()
        waiting = set()
        for _ in range(QUERIES):
            query_id = uuid.uuid4().hex
            data = [random.gauss(0.0, 1.0) for _ in range(features)]
            body = {
                "inputs": [{"name": name, "datatype": "FP32", "shape": [1, features], "data": data}],
                "parameters": {"latency_ms": 5000},
            }
            headers = [("ce_id", query_id.encode()), ("content-type", b"application/json")]
            await producer.send(
                f"{prefix}.app.{app}.queries", json.dumps(body).encode(), key=query_id.encode(), headers=headers
            )
            waiting.add(query_id)
        await producer.flush()
        async with asyncio.timeout(30):
            while waiting:
                record = await consumer.getone()
                query_id = record.key.decode()
                if query_id in waiting:  # others' outcomes may have raw tensors behind their JSON
                    waiting.remove(query_id)
                    outcome = json.loads(record.value)
                    ended = outcome["parameters"]
                    why = ended["detail"] or ended["reason"] or ""
                    print(ended["kind"], why, outcome.get("model_version"), outcome.get("outputs"))
    except KafkaConnectionError:
        sys.exit(f"no Kafka broker answers at {servers}")
    except TimeoutError:
        sys.exit(f"{len(waiting)} of {QUERIES} queries have no outcome yet: does admission run?")
    finally:
        await producer.stop()
        await consumer.stop()


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:6]))
