"""A web server of a test's own, in threads of this process; and a port for one in another process."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def free_port(first: int = 10_000) -> int:
    """A port of 127.0.0.1 for a program that is told where to listen, out of 10,000 from `first` on. Linux gives none
    of them (below 32768) to connections, nor to servers that ask for any port, so that it stays free meanwhile."""
    for port in random.SystemRandom().sample(range(first, first + 10_000), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Handler(BaseHTTPRequestHandler):
    """Answers requests of all methods by `answer`, and prints nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self) -> None:
        """Answer a request; by default there is nothing."""
        self.send(404)

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send an answer. To a HEAD only its headers, with the length that the body would have."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def _do(self) -> None:
        self.answer()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815 - as http.server calls them


class _Server(ThreadingHTTPServer):
    request_queue_size = 512
    """Of five, the default, connections that are made at once wait for the kernel to try again: 1 s, 3 s, 7 s."""

    def handle_error(self, *request: object) -> None:
        if not isinstance(sys.exception(), OSError):  # of a connection that the test broke
            super().handle_error(*request)  # type: ignore[arg-type]


@contextlib.contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], *, certificate: Path | None = None, **attributes: object
) -> Iterator[int]:
    """A server on a free port of this machine: the port.

    Args:
        handler: answers a request.
        certificate: it speaks TLS with this.
        attributes: of the handlers.
    """
    server = _Server(("127.0.0.1", 0), type("Own", (handler,), attributes))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
