"""Fixtures for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# How fast a machine is proves nothing: no test fails for it.
settings.register_profile("streamvid", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamvid")

# SVT-AV1 writes its settings to stderr otherwise; it reads this when the encoder starts.
os.environ.setdefault("SVT_LOG", "1")

pytest_plugins = ["tests.s3_server"]
