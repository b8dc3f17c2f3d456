"""Examples of properties that take long for each: all of them in ``make test-all``, fewer in ``make test``."""

from hypothesis import settings

_FEWER = {"suite": 3}


def drawn(examples: int) -> settings:
    """Settings with all of ``examples``, or a third of them under the profile of ``make test``."""
    part = _FEWER.get(settings.get_current_profile_name(), 1)
    return settings(max_examples=-(-examples // part), deadline=None)
