"""Encoded batches → rendered batches, in stages that run ahead of the training loop: threads with bounded queues."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Final, Generic, ParamSpec, TypeVar, cast

from streamvid.decode.interrupts import mark_thread
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.fetch.epoch_reader import Rescue
from streamvid.forks import HomeProcess
from streamvid.transform.render import RenderedBatch, Renderer

T = TypeVar("T")
P = ParamSpec("P")

_AHEAD: Final = 2
"""Batches that wait between two stages at most."""
_POLL_SECONDS: Final = 0.1
"""How often a thread that waits for room or for an item checks whether it has been told to stop."""


def begun_at_call(
    function: Callable[P, Generator[T | None, None, None]],
) -> Callable[P, Generator[T, None, None]]:
    """Decorate a generator function so that its generators run to their first item, None, at the call: a generator that
    was never started would not run its `finally` when it is closed."""

    @functools.wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        running = function(*args, **kwargs)
        next(running)
        return cast(Generator[T, None, None], running)

    return begin


class RenderPipeline:
    """Decodes and transforms batches ahead of the training loop. Renderers are kept from epoch to epoch.

    Args:
        make_renderer: makes a renderer; concurrent iterations each get their own, unless it is `shared`.
        read_ahead: most batches that have been read and wait for the decoder.
        on_wait: called now and then while the decoder waits for a batch.

    Attributes:
        home: the process that has the renderers' threads.
    """

    def __init__(
        self,
        make_renderer: Callable[[], Renderer],
        *,
        read_ahead: int = _AHEAD,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self._make_renderer, self._read_ahead, self.home = make_renderer, read_ahead, HomeProcess()
        self._on_wait, self._closed = on_wait, False
        self._idle: list[Renderer] = []
        self._used: list[Renderer] = []
        """One for each iteration under way."""

    @begun_at_call
    def run(
        self,
        batches: Generator[EncodedBatch, None, None],
        *,
        read_here: bool = False,
        stop: threading.Event | None = None,
        rescue: Rescue | None = None,
    ) -> Generator[RenderedBatch | None, None, None]:
        """The batches as tensors, in order; an error of any stage is raised here, in its place. Stages begin at once.

        Args:
            batches: one epoch's, made in a thread; closed at the end.
            read_here: take them in the calling thread instead, where PyTorch watches its workers and Python receives
                Ctrl-C. Decoding has a thread of its own all the same.
            stop: set before waiting for the reading thread, which may itself wait for a storage.

        Raises:
            InputError: this process was forked from the one that iterated first, and has none of its threads.
        """
        process = self.home.enter()
        getpid = os.getpid  # module globals may be gone when the interpreter exits
        renderer = self._take()
        complete = False
        with ExitStack() as stages:

            def end() -> None:
                if getpid() == process:
                    stages.close()

            # An iterator that is still alive when Python ends must not run into DALI's own clean-up.
            atexit.register(end)
            stages.callback(atexit.unregister, end)
            encoded: Channel[EncodedBatch]
            if read_here:
                encoded = Channel(_AHEAD + 1)
                stages.callback(batches.close)
            else:
                encoded = Background(batches, depth=self._read_ahead, name="streamvid-read", on_wait=self._on_wait)
                stages.callback(encoded.close)
            if stop is not None:
                stages.callback(stop.set)

            def decode_ahead(items: Iterator[T]) -> Iterator[T]:
                decoded = Background(items, depth=_AHEAD, name="streamvid-decode")
                stages.callback(decoded.close)
                # The decoding thread may wait for the reading thread, so the latter is told to stop first.
                stages.callback(encoded.stop)
                decoded.start()
                # Not `decoded` itself: a generator that is closed in `yield from` closes that first, which would wait
                # for the decoding thread before the reading one is told to stop.
                return _hand_over(batches, encoded, decoded) if read_here else (item for item in decoded)

            try:
                if isinstance(encoded, Background):
                    encoded.start()
                rendered = renderer.run(encoded, decode_ahead, rescue)
                yield None
                for batch in rendered:
                    yield batch
                    self.home.enter()
                complete = True
            finally:
                if getpid() != process:
                    stages.pop_all()
                else:
                    stages.close()
                    self._give_back(renderer, complete)

    def _take(self) -> Renderer:
        self._closed, shared = False, [memory for memory in self._used if memory.shared]
        self._used.append(shared[0] if shared else self._idle.pop() if self._idle else self._make_renderer())
        return self._used[-1]

    def _give_back(self, renderer: Renderer, complete: bool) -> None:
        self._used.remove(renderer)
        if renderer in self._used:
            return
        # A renderer cannot be used again after an error, nor after an iteration was left early, because DALI's pipeline
        # still has batches of it. The next iteration makes a new one.
        if complete and not self._idle and not self._closed:
            self._idle.append(renderer)
        else:
            renderer.close()

    def close(self) -> None:
        """Free threads and device memory that no iteration uses; what one uses, when it ends."""
        if self.home.here:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
            self.home.leave()


def _hand_over(batches: Iterator[EncodedBatch], encoded: Channel[EncodedBatch], decoded: Iterator[T]) -> Iterator[T]:
    """Decoded batches. Encoded batches are taken from the source in the calling thread and passed to the decoding
    thread, a few ahead.

    After the first batch, at least one: the decoding thread submits the next batch before it waits for a result.
    """
    inside = ahead = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            encoded.end()
            break
        except Exception as error:
            # The decoding thread raises the error after the batches that came before it.
            encoded.end(error)
            break
        encoded.put(batch)
        inside += 1
        if inside > ahead:
            yield next(decoded)
            inside -= 1
            # The lead grows by one per batch, so that the first batch need not wait until others have been read.
            ahead = min(ahead + 1, _AHEAD)
    yield from decoded


class Channel(Generic[T]):
    """A bounded queue from one thread to another, as an iterator for the second.

    Args:
        depth: most items in the queue.
        on_wait: called by the second thread now and then while it waits.
    """

    def __init__(self, depth: int, on_wait: Callable[[], None] | None = None) -> None:
        self._queue: queue.Queue[tuple[bool, T | None]] = queue.Queue(depth)
        self._on_wait = on_wait
        self._stop = threading.Event()
        self._complete, self._error = False, cast(BaseException | None, None)
        """Whether all items are in the queue, and the error after them."""
        self._ended = False

    def put(self, item: T) -> bool:
        """Put an item into the queue as soon as there is room. Returns False if the channel was stopped instead."""
        while not self._stop.is_set():
            try:
                self._queue.put((True, item), timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end of the items; an error is raised to the consumer after the last item. Never waits, for which a
        process without memory would have no lock."""
        self._error = None if self._stop.is_set() else error
        self._complete = True
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((False, None))  # wakes a consumer that waits

    def ready(self) -> bool:
        """Whether `next` returns, or raises, without waiting."""
        return self._ended or self._complete or self._stop.is_set() or not self._queue.empty()

    def stop(self) -> None:
        """End both sides without waiting for them; items that wait may be dropped."""
        self._stop.set()

    def __iter__(self) -> Channel[T]:
        return self

    def __next__(self) -> T:
        while not self._ended:
            complete = self._complete or self._stop.is_set()
            try:
                is_item, value = self._queue.get(not complete, _POLL_SECONDS)
            except queue.Empty:
                self._ended = complete
                if self._on_wait is not None:
                    self._on_wait()
                continue
            if is_item:
                return value  # type: ignore[return-value]
            self._ended = True
        error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            del error  # it refers to this frame


class Background(Channel[T]):
    """The items of an iterator, up to `depth` of them made in advance by a thread of its own.

    An exception of the iterator is raised to the consumer, in its place in the order. `close` ends the thread; the
    iterator's own clean-up (`finally`) runs in that thread before `close` returns.
    """

    def __init__(
        self, source: Iterator[T], *, depth: int, name: str, on_wait: Callable[[], None] | None = None
    ) -> None:
        super().__init__(depth, on_wait)
        self._thread = threading.Thread(target=self._run, args=(source,), name=name, daemon=True)

    def start(self) -> Background[T]:
        """Start the thread. Not done by the constructor, because Ctrl-C may interrupt it, and the caller can close only
        an object that it has."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop making items, and wait for the thread. May be called more than once."""
        self.stop()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def _run(self, source: Iterator[T]) -> None:
        end: BaseException | None = None
        mark_thread()
        try:
            for item in () if self._stop.is_set() else source:
                if not self.put(item):
                    break
        except BaseException as error:
            # Catch any exception: if the thread died silently, its consumer would wait for ever.
            end = error
        try:
            close = getattr(source, "close", None)
            if close is not None:
                close()
        except BaseException as error:
            end = end or error
        self.end(end)
        del end, source  # an exception refers to this frame
