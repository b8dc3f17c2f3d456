"""Records of variant instances on their compacted topic: one an instance, a tombstone once it is unloaded."""

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.instance import Instance
from sluicegate.streams.records.bounds import Reader

_instance: Reader[Instance] = Reader(Instance)


def encode_instance(instance: Instance) -> bytes:
    """For the instances topic, keyed by ``instance.key``."""
    return _instance.adapter.dump_json(instance)


def decode_instance(key: bytes | None, value: bytes) -> Instance:
    """From the instances topic. Raises InvalidInputError for what is none, or stands under another's key."""
    instance = _instance.json("instance", value)
    if instance.key.encode() != key:
        raise InvalidInputError("instance", f"{instance.key!r:.80} stands under the key {key!r:.80}")
    return instance
