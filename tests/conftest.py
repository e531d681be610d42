"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# How fast a machine is proves nothing: no test fails for it.
settings.register_profile("streamvid", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamvid")

# SVT-AV1 writes its settings to stderr otherwise; it reads this when the encoder starts.
os.environ.setdefault("SVT_LOG", "1")

# A shell that runs the tests in the background has them ignore Ctrl-C, and so all programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.s3_server"]
