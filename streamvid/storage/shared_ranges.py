"""Remote byte ranges of several readers, joined across readers into shared requests."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from streamvid.arrays import UInt8
from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.range_reader import RangeReader, cut_out
from streamvid.storage.turn import Turn
from streamvid.storage.url import is_local


class SharedRanges:
    """Ranges of remote files for several readers, which begin to read in the order of their numbers. Ranges close to
    each other become one request, whichever readers want them. The first of these readers makes the request, so that
    every reader waits only for requests that hold its own ranges.

    Args:
        reader: its retries, cache and connections are used; the cache is read immediately.
        wanted: the ranges of each reader, by its number.
    """

    def __init__(self, reader: RangeReader, wanted: Sequence[Sequence[ByteRange]]) -> None:
        self._like = reader
        owners: dict[ByteRange, int] = {}
        for number, ranges in enumerate(wanted):
            for piece in ranges:
                if not is_local(piece.path):
                    owners.setdefault(piece, number)
        every = list(owners)
        found = {} if reader.cache is None else reader.cache.read(every)
        self._found = {every[n]: block for n, block in found.items()}
        missing = [piece for piece in every if piece not in self._found]
        self._joined, places = reader.joined(missing, reader.remote.link.gap)
        self._place = dict(zip(missing, places, strict=True))
        first: dict[int, int] = {}
        for piece, place in self._place.items():
            first[place] = min(first.get(place, owners[piece]), owners[piece])
        self._own: list[list[int]] = [[] for _ in wanted]
        for place, number in first.items():
            self._own[number].append(place)
        self._come = threading.Condition()
        self._blocks: dict[int, UInt8 | BaseException] = {}

    def reader(self, number: int, turn: Turn) -> RangeReader:
        """The reader with this number, for one thread and one `read`, of its ranges in `wanted`."""
        return _Reader(self, number, self._like, turn)

    def fetch(self, number: int, reader: RangeReader, versions: Mapping[str, FileVersion]) -> None:
        """Make the requests that this reader is the first to need."""
        own = self._own[number]
        blocks: Sequence[UInt8 | BaseException] = []
        try:
            if own:
                blocks = reader.fetch_joined([self._joined[place] for place in own], versions)
        except BaseException as error:
            blocks = [error] * len(own)
            raise
        finally:
            with self._come:
                self._blocks.update(zip(own, blocks, strict=True))
                self._come.notify_all()

    def block(self, wanted: ByteRange) -> UInt8:
        """The bytes of a range, uint8; waits for its request, and raises the request's error."""
        if (found := self._found.get(wanted)) is not None:
            return found
        place = self._place[wanted]
        with self._come:
            self._come.wait_for(lambda: place in self._blocks)
        block = self._blocks[place]
        if isinstance(block, BaseException):
            raise block
        return cut_out(wanted, self._joined[place], block)


class _Reader(RangeReader):
    def __init__(self, shared: SharedRanges, number: int, like: RangeReader, turn: Turn) -> None:
        super().__init__(like.retry, like, like.cache, turn)
        self._shared, self._number = shared, number

    def _read_remote(
        self, ranges: Sequence[ByteRange], versions: Mapping[str, FileVersion], neighbours: bool
    ) -> list[UInt8]:
        self._shared.fetch(self._number, self, versions)
        return [self._shared.block(wanted) for wanted in ranges]
