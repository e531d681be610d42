"""Buffers that Arrow's threads can free without Python's interpreter lock."""

from __future__ import annotations

import pyarrow as pa


def arrow_reader(data: bytes) -> pa.BufferReader:
    """The bytes as a file in Arrow's own memory (a copy).

    Arrow reads CSV, JSON and Parquet in threads of its own, which may still hold the file when the call has returned.
    To free a Python object such as `io.BytesIO` or `bytes` they need the interpreter lock (GIL); at interpreter
    shutdown they do not get it, and the process aborts ("terminate called without an active exception",
    https://github.com/apache/arrow/issues/34314) or hangs (https://github.com/apache/arrow/issues/50482).
    """
    with pa.BufferOutputStream() as stream:
        stream.write(data)
        return pa.BufferReader(stream.getvalue())
