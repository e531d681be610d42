"""How much a test tries: little for every change, all at night. `HYPOTHESIS_PROFILE` chooses, as for hypothesis."""

from __future__ import annotations

import os


def by_profile(*, ci: int, nightly: int) -> int:
    """The number for the profile that the tests run with."""
    return nightly if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else ci
