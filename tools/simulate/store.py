"""An object store in memory, as a protocol of fsspec (`sim://`): latency, outages, errors, and damage on the way."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec import AbstractFileSystem

from tools.simulate.kernel import Current, Kernel

STALL = 20.0
"""Seconds after which the product's client gives a silent connection up."""


class Answered(Exception):  # noqa: N818
    """An answer of the server that is an error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answers {status}")
        self.status = status


class Store:
    """The faults of the storage in one life."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.latency = kernel.random.choice((0.01, 0.2, 2.0))
        self.failing = 0.0
        """How likely a request fails."""
        self.down_until = 0.0
        self.how = "503"
        self.damage: set[str] = set()
        """Objects whose next answer is damaged."""
        self.asked: dict[tuple[int, str], int] = {}
        """How often each node has asked for the beginning of an object."""

    def request(self, name: str) -> None:
        """The time that an answer takes, or the error."""
        kernel = self._kernel
        began = kernel.now
        kernel.block(kernel.random.expovariate(1 / self.latency))
        if kernel.now > began + 60:  # the process was stopped meanwhile
            raise ConnectionResetError
        if kernel.now < self.down_until or kernel.random.random() < self.failing:
            how = self.how if kernel.now < self.down_until else kernel.random.choice(("503", "reset", "stall"))
            kernel.say(f"{how} for {name[-16:]}")
            if how == "503":
                raise Answered(503)
            if how == "stall":
                kernel.block(STALL)
                raise TimeoutError
            raise ConnectionResetError


class SimulatedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Objects by name. Outside of a life all requests succeed at once."""

    protocol = "sim"
    objects: ClassVar[dict[str, bytes]] = {}
    store: ClassVar[Store | None] = None

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if self.store is not None and Current.get() is not None:
            self.store.request(name)
        if name not in self.objects:
            raise FileNotFoundError(path)
        return {"name": name, "size": len(self.objects[name]), "type": "file"}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        raise NotADirectoryError(path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        name, store = self._strip_protocol(path), self.store
        kernel = Current.get()
        if store is None or kernel is None:
            return self.objects[name][start:end]
        store.request(name)
        content = self.objects[name][start:end]
        if not start:
            place = kernel.current.process.node, name
            store.asked[place] = store.asked.get(place, 0) + 1
        if name in store.damage and content:
            store.damage.discard(name)
            kernel.say(f"damaged answer for {name[-16:]}")
            content = bytes(byte ^ (place % 256 == 9) for place, byte in enumerate(content))
        elif kernel.random.random() < store.failing / 4:
            return content[: int(len(content) * kernel.random.random())]  # broken off
        return content


fsspec.register_implementation("sim", SimulatedFileSystem, clobber=True)
