"""A Ceph RGW with one bucket, and in front of it a proxy that adds latency and limits each connection."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.support.s3_server import S3Server

ROOT: Final = Path(__file__).parents[2]
BUCKET: Final = "bench"
_EVERYBODY: Final = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}


@contextlib.contextmanager
def ceph(folder: Path, port: int) -> Iterator[S3Server]:
    """A Ceph RGW of one node, which keeps objects in memory, with a bucket that anybody reads: webdataset's pipes sign
    nothing."""
    environment = {**os.environ, "STREAMVID_S3_PORT": str(port)}
    try:
        up = [str(ROOT / "tools/s3/up.sh"), str(folder), "memstore"]
        subprocess.run(up, env=environment, check=True, stdout=subprocess.DEVNULL)
        server = S3Server(f"http://127.0.0.1:{port}")
        policy = {"Version": "2012-10-17", "Statement": [_EVERYBODY | {"Resource": f"arn:aws:s3:::{BUCKET}/*"}]}
        server.filesystem().call_s3("create_bucket", Bucket=BUCKET)
        server.filesystem().call_s3("put_bucket_policy", Bucket=BUCKET, Policy=json.dumps(policy))
        yield server
    finally:
        subprocess.run([ROOT / "tools/s3/down.sh", folder], check=False)


def compile_link(folder: Path) -> Path:
    """The proxy's program."""
    program = folder / "slow_link"
    subprocess.run(["cc", "-O2", "-o", program, Path(__file__).with_name("slow_link.c")], check=True)
    return program


@contextlib.contextmanager
def slow_link(
    program: Path, port: int, server: int, latency: float, rate: float, stall: float = 0.0
) -> Iterator[Callable[[], list[int]]]:
    """The proxy; the function says how many connections, requests and bytes it has had."""
    command = [str(program), str(port), str(server), str(latency), str(rate), str(stall)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        time.sleep(0.3)

        def counts() -> list[int]:
            proxy.send_signal(signal.SIGUSR1)
            return [int(word) for word in proxy.stdout.readline().split()]  # type: ignore[union-attr]

        try:
            yield counts
        finally:
            proxy.terminate()
