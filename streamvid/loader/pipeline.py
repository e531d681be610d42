"""Encoded batches → rendered batches, in stages that run ahead of the training loop."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Final, TypeVar

from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.loader.background import Background, Channel
from streamvid.transform.render import RenderedBatch, Renderer

T = TypeVar("T")

_AHEAD: Final = 2
"""Batches that wait between two stages at most."""


class RenderPipeline:
    """Decodes and transforms batches ahead of who takes them. Renderers live as long as it does, over many epochs.

    Args:
        make_renderer: makes one; iterations at the same time each have their own.
    """

    def __init__(self, make_renderer: Callable[[], Renderer]) -> None:
        self._make_renderer = make_renderer
        self._idle: list[Renderer] = []

    def run(
        self, batches: Generator[EncodedBatch, None, None], *, read_here: bool = False
    ) -> Generator[RenderedBatch, None, None]:
        """The batches as tensors, in order; an error of any stage is raised here, in its place.

        Args:
            batches: one epoch's, made in a thread; closed at the end.
            read_here: take them in the calling thread instead, where PyTorch watches its workers and Python receives
                Ctrl-C. Decoding has a thread of its own all the same.
        """
        renderer = self._idle.pop() if self._idle else self._make_renderer()
        complete = False
        with ExitStack() as stages:
            # An iterator that is still alive when Python ends must not run into DALI's own clean-up.
            stop = stages.close
            atexit.register(stop)
            stages.callback(atexit.unregister, stop)
            encoded: Channel[EncodedBatch]
            if read_here:
                encoded = Channel(_AHEAD + 1)
                stages.callback(batches.close)
            else:
                encoded = reading = Background(batches, depth=_AHEAD, name="streamvid-read")
                stages.callback(reading.close)

            def decode_ahead(items: Iterator[T]) -> Iterator[T]:
                decoded = Background(items, depth=_AHEAD, name="streamvid-decode")
                stages.callback(decoded.close)
                # The decoding thread may be waiting for the reading one: that is told to stop first.
                stages.callback(encoded.stop)
                return _hand_over(batches, encoded, decoded) if read_here else decoded

            try:
                yield from renderer.run(encoded, decode_ahead)
                complete = True
            finally:
                stages.close()
                # A decoder that failed may be of no use; batches of an iteration that was left early are still inside
                # DALI's pipeline. The next iteration makes a new renderer.
                if complete and not self._idle:
                    self._idle.append(renderer)
                else:
                    renderer.close()

    def close(self) -> None:
        """Free threads and device memory that no iteration uses."""
        while self._idle:
            self._idle.pop().close()


def _hand_over(batches: Iterator[EncodedBatch], encoded: Channel[EncodedBatch], decoded: Iterator[T]) -> Iterator[T]:
    """Decoded batches; encoded ones are taken in the calling thread and handed to the decoding one, a few ahead.

    At least one, but for the first: the decoding thread submits the next batch before it waits for a result.
    """
    inside = ahead = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            encoded.end()
            break
        except Exception as error:
            # The decoding thread raises it behind the batches that came before it.
            encoded.end(error)
            break
        encoded.put(batch)
        inside += 1
        if inside > ahead:
            yield next(decoded)
            inside -= 1
            # One more from batch to batch: the first does not wait until others have been read.
            ahead = min(ahead + 1, _AHEAD)
    yield from decoded
