"""Copies whole files from web servers. Where a response breaks off, the next one goes on, if the server has ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamvid.storage.part import Pace, answer_of, first_byte, version

_PIECE_BYTES = 1 << 20


class WebCopy:
    """A copy in one or several attempts, each of which is a response with all that is left.

    Args:
        fs: fsspec's HTTP file system.
        url: URL of the file.
        write: takes bytes and their offset; from 0 again, if the server sends the file from its beginning again.
        length: size of the file in bytes; 0 if unknown.

    Attributes:
        done: bytes written.
    """

    def __init__(self, fs: Any, url: str, write: Callable[[bytes, int], object], length: int) -> None:
        self._fs, self._url, self._write, self._length = fs, url, write, length
        self.done = 0
        self._mark = ""

    async def attempt(self) -> None:
        """Make a request for the rest, and write what comes.

        Raises:
            ConnectionError: fewer or more bytes came than the file has.
            Exceptions of aiohttp, as `streamvid.storage.explain` knows them, and of `write`.
        """
        headers = {"Range": f"bytes={self.done}-", "If-Range": self._mark} if self.done and self._mark else {}
        async with answer_of(self._fs, self._url, headers) as answer:
            encoded = "Content-Encoding" in answer.headers
            if not (answer.status == 206 and first_byte(answer.headers.get("Content-Range")) == self.done):
                self.done = 0
                if answer.status != 200:
                    self._mark = ""  # so that the next attempt asks for all of it
                    raise ConnectionError(f"the storage answers {answer.status} to a request for all of it")
                mark = version(answer.headers)
                self._mark = "" if encoded or mark.startswith("W/") else mark  # a weak one matches nothing
            pace = Pace(answer)
            try:
                while piece := await answer.content.read(_PIECE_BYTES):
                    if self._length and self.done + len(piece) > self._length:
                        answer.close()
                        self.done, self._mark = 0, ""
                        raise ConnectionError(f"more than {self._length} bytes came")
                    self._write(piece, self.done)
                    self.done += len(piece)
            finally:
                pace.end()
        if self.done < self._length:
            raise ConnectionError(f"{self.done} of {self._length} bytes came")
