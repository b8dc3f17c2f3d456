"""Which partition a key belongs to: murmur2 as in Kafka's default partitioner, so that every broker agrees."""

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """32-bit murmur2 hash of ``data``, unsigned, with Kafka's seed."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Partition of ``key`` among ``partitions``. One partition costs nothing."""
    return 0 if partitions == 1 else (murmur2(key) & 0x7FFFFFFF) % partitions
