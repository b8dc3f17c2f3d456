"""Records of variant instances on their compacted topic: one an instance, a tombstone once it is unloaded."""

import math

from pydantic import TypeAdapter, ValidationError

from domain.errors import InvalidInputError
from domain.instance import Instance

_instance = TypeAdapter(Instance)


def encode_instance(instance: Instance) -> bytes:
    """For the instances topic, keyed by ``instance.key``."""
    return _instance.dump_json(instance)


def decode_instance(key: bytes | None, value: bytes) -> Instance:
    """From the instances topic. Raises InvalidInputError for what is none, or stands under another's key."""
    try:
        instance = _instance.validate_json(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(("instance", *(str(part) for part in fault["loc"])))
        raise InvalidInputError(place, f"{fault['msg']} (got {fault['input']!r:.60})") from error
    if instance.key.encode() != key:
        raise InvalidInputError("instance", f"{instance.key!r:.80} stands under the key {key!r:.80}")
    numbers = (instance.qps, instance.peak, instance.slowdown, instance.expires)
    if not all(math.isfinite(n) and n >= 0.0 for n in numbers):
        raise InvalidInputError("instance", f"{instance.key:.80}: {numbers} are not all numbers from 0 on")
    return instance
