"""A promise rests on the order of a stream, which one partition keeps: whether an app's topics have no more."""

from collections.abc import Iterable

from sluicegate.streams.ports import Admin
from sluicegate.streams.topics import Topics


async def spread_over(admin: Admin, topics: Topics, apps: Iterable[str]) -> str:
    """Why what is promised to the first of ``apps`` cannot be kept on the topics that exist; empty where it can."""
    names = [name for app in apps for name in (topics.queries(app), topics.admitted(app))]
    for topic, count in sorted((await admin.partitions(names)).items()):
        if count > 1:
            return (
                f"{topic} has {count} partitions, and a promise needs one; register the app under another name, or "
                "without --mcd and --mk"
            )
    return ""
