"""Forked children, and what they have of their parent: its objects and its locked locks, but not its threads.

A child that waits for such a thread or takes such a lock waits for ever, and one that tells its parent's workers to end
ends them for the parent. So nothing that was made before a fork is used, closed or freed by the child.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from streamvid.errors import InputError

if TYPE_CHECKING:
    from nvidia.dali import Pipeline

T = TypeVar("T")


class HomeProcess:
    """The process that has the threads of an object: the first that uses it."""

    def __init__(self) -> None:
        self._pid: int | None = None

    @property
    def here(self) -> bool:
        """Whether this process may close and free what the object has."""
        return self._pid in (None, os.getpid())

    def enter(self) -> int:
        """Use the object's threads in this process: its number.

        Raises:
            InputError: this is a forked child of the one that uses them.
        """
        if not self.here:
            raise InputError("this process was forked from one that uses the loader: make a loader in it")
        self._pid = os.getpid()
        return self._pid

    def leave(self) -> None:
        """The threads are gone: a child that is forked later may have its own. In an earlier child: nothing."""
        if self.here:
            self._pid = None


def keep(value: object) -> None:
    """Never free it in this process, not even at its end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def abandon_pipeline(pipeline: Pipeline) -> None:
    """Neither shut a DALI pipeline down nor free it, which would wait for its threads."""
    keep(pipeline._pipe)
    pipeline._pipe = None


def in_children(value: T, abandon: Callable[[T], None] = keep) -> T:
    """Have every forked child abandon an object, first thing, while it exists: garbage that is not collected yet, too.

    Args:
        value: what would wait for threads, or end other processes, when it is freed.
        abandon: called with it in the child; default: it is never freed.

    Returns:
        the object.
    """
    _objects()[value] = abandon
    return value


@cache
def _objects() -> WeakKeyDictionary[object, Callable[..., None]]:
    objects: WeakKeyDictionary[object, Callable[..., None]] = WeakKeyDictionary()

    def abandon_all() -> None:
        for value, abandon in objects.items():
            abandon(value)

    os.register_at_fork(after_in_child=abandon_all)
    return objects
