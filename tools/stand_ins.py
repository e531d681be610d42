"""Stand-ins for a decoder that hangs, and for one that crashes.

A module of its own: the processes that decode import it while a clip waits.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, Final

from streamvid.decode import isolated

STAND_INS: Final = "STREAMVID_STAND_INS"
"""The environment variable with their clips' keys, a JSON object: "hangs" or "crashes" by key."""

_decode_into = isolated._decode_into


def decode_into(memory: int, size: int, encoded: Any, segment: Any) -> Iterator[Any]:
    """In the place of `streamvid.decode.isolated._decode_into`."""
    match json.loads(os.environ.get(STAND_INS, "{}")).get(encoded.name):
        case "hangs":
            time.sleep(3600)
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
    return _decode_into(memory, size, encoded, segment)
