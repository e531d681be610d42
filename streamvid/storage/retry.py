"""Tries again where a storage was unavailable for a while."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from streamvid.storage.explain import StorageUnavailable

log = logging.getLogger(__name__)

DELAYS: Final = (1.0, 4.0)
"""Seconds before the second and the third attempt. s3fs retries each request five times by itself; these attempts are
for connections that break in the middle of a body, and for longer outages."""

T = TypeVar("T")


def retrying(attempt: Callable[[], T], *, sleep: Callable[[float], object] | None = None) -> T:
    """The result of `attempt`, called again after each of `DELAYS` as long as it raises StorageUnavailable.

    Args:
        attempt: may be called several times.
        sleep: waits that many seconds; returns something true to give up. Default: `time.sleep`.

    Raises:
        StorageUnavailable: of the last attempt; other exceptions pass at once.
    """
    for delay in DELAYS:
        try:
            return attempt()
        except StorageUnavailable as error:
            # Jitter, as all processes of a job see the same outage at the same time.
            seconds = delay * random.uniform(0.5, 1.5)
            log.warning("%s Trying again in %.1f s.", error, seconds)
            if (sleep or time.sleep)(seconds):
                raise
    return attempt()
