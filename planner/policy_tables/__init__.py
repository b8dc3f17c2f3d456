"""Selection tables on their way to workers: bytes, checksum, fingerprint."""
