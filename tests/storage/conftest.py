from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.faulty_s3 import FaultyS3, faulty_s3


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyS3]:
    """One for all tests of a module, as a client of S3 takes long to make."""
    with faulty_s3() as site:
        yield site


@pytest.fixture
def site(server: FaultyS3) -> FaultyS3:
    """That server without objects or faults, and with nothing of the test before."""
    vars(server).update(vars(FaultyS3(server.endpoint)))
    return server
