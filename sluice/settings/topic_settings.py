"""Settings of topics, by class: how long they are kept, how often copied, how packed."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sluicegate.sluice.settings.endpoint_settings import Section
from sluicegate.streams.topics import DEFAULT_POLICIES, MAX_RECORD_BYTES, TopicPolicies, TopicPolicy

Kept = Annotated[float, Field(ge=60, allow_inf_nan=False)]


class _Topics(Section):
    """What all topics of a class have in common; null: as ``kafka.*`` or the broker has it.

    ``segment_s``: what is closed after that long can be deleted or compacted. ``compression``: as the broker stores
    batches. ``max_bytes``: of a record.
    """

    segment_s: Kept | None = None
    replication: int | None = Field(default=None, ge=1, le=16)
    min_insync_replicas: int | None = Field(default=None, ge=1, le=16)
    compression: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] | None = None
    max_bytes: int | None = Field(default=MAX_RECORD_BYTES, ge=65_536, le=1 << 30)

    @model_validator(mode="after")
    def _copies(self) -> "_Topics":
        if self.min_insync_replicas is not None and self.min_insync_replicas > (self.replication or 16):
            raise ValueError(
                f"min_insync_replicas is {self.min_insync_replicas}, more than replication, {self.replication}: "
                "nothing could be written; give at most as many"
            )
        return self

    def policy(self) -> TopicPolicy:
        """As topics are told."""
        return TopicPolicy(**dict(self))


class RecordTopics(_Topics):
    """Topics whose records go after ``retention_s`` (null: never), in segments of an eighth of it unless it is said.

    A query that is deleted before it was read has no outcome: leave room for the longest time that a stage may be away.
    """

    retention_s: Kept | None = DEFAULT_POLICIES.queries.retention_s


class MetricTopics(RecordTopics):
    """Topics of what is measured."""

    retention_s: Kept | None = DEFAULT_POLICIES.metrics.retention_s
    max_bytes: int | None = Field(default=None, ge=65_536, le=1 << 30)


class ControlTopics(_Topics):
    """Topics that keep the newest record of each key, and older ones for ``compaction_lag_s``."""

    compaction_lag_s: Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)] | None = None


class TopicsSection(Section):
    """All classes of topics. They get these settings where they are created; ``sluice topics --apply`` gives them to
    those that exist."""

    queries: RecordTopics = RecordTopics()
    admitted: RecordTopics = RecordTopics()
    work: RecordTopics = RecordTopics()
    results: RecordTopics = RecordTopics()
    dead_letters: RecordTopics = RecordTopics()
    metrics: MetricTopics = MetricTopics()
    control: ControlTopics = ControlTopics()

    def policies(self) -> TopicPolicies:
        """As topics are told."""
        return TopicPolicies(**{name: topics.policy() for name, topics in self})
