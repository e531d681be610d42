"""Fixtures for all tests."""

from __future__ import annotations

import os

# SVT-AV1 writes its settings to stderr otherwise; it reads this when the encoder starts.
os.environ.setdefault("SVT_LOG", "1")

pytest_plugins = ["tests.s3_server"]
