"""Bytes for Arrow to read in its own threads."""

from __future__ import annotations

import pyarrow as pa


def arrow_reader(data: bytes) -> pa.BufferReader:
    """A file in memory that Arrow's threads can read, and let go of, without the interpreter.

    Arrow reads CSV, JSON and Parquet in threads of its own, and some of them may still hold the file when the call has
    returned. If that is a Python object, such as `io.BytesIO` or `bytes`, they need the interpreter's lock to let go of
    it; while the interpreter ends there is none to be had, and the process aborts ("terminate called without an active
    exception", https://github.com/apache/arrow/issues/34314) or hangs (https://github.com/apache/arrow/issues/50482).
    So Arrow gets a copy that is its own.
    """
    with pa.BufferOutputStream() as stream:
        stream.write(data)
        return pa.BufferReader(stream.getvalue())
