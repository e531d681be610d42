"""A `python` that is forked from a process which has imported PyTorch and streamvid's loaders.

Most of what tests of programs cost is imports: 2 s of processor time for PyTorch in each process, of which a launch by
torchrun has two and more. `forked_python` is the path of an executable that takes the place of `sys.executable` in a
command, and of `PYTHON_EXEC` for torchrun. It has the program run in a child of the server below, with its own
arguments, environment, working folder, standard streams and session, and ends as the child does. It hands on
signals; if it is killed, the child is killed, too. The child ends as any interpreter does. It has another process id.

Not for tests of imports and of what is read at them (fsspec's variables of the environment), of processes by their ids,
and of programs that start processes by `sys.executable`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

# Begins within hundredths of a second: isolated, and without site packages.
_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [len(request).to_bytes(8)], [0, 1, 2])
server.sendall(request)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, _: server.send(bytes([number])))
status = server.recv(8)
status = int.from_bytes(status, signed=True) if status else -signal.SIGKILL
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if status != -signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


LOADERS = tuple(f"streamvid.loader.{name}" for name in ("stream_loader", "clip_dataset", "gpu_loader"))


class Program(NamedTuple):
    """What a child is to run: arguments of Python, environment and working folder."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """The executable, while its server runs.

    Args:
        folder: for the executable and the socket, whose path is limited to some 100 bytes.
    """
    address, python = folder / "socket", folder / "python"
    # Closed here once the server has it: if that ends, clients are refused instead of waiting.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen(100)
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", __name__, str(listening.fileno())],
            stdin=subprocess.PIPE, pass_fds=[listening.fileno()], env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        server.wait()  # it goes on as no child of this process: tests look at these, and kill them
    assert server.stdin is not None
    with server.stdin:  # the server ends with this pipe, so with this process, too
        python.write_text(_CLIENT.format(python=sys.executable, address=str(address)))
        python.chmod(0o755)
        yield python


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The path of the executable."""
    with serving(tmp_path_factory.mktemp("python")) as python:
        yield python


def _receive(connection: socket.socket) -> tuple[Program | None, list[int]]:
    """A client's program, None of one that has been killed meanwhile, and its standard streams."""
    size, streams, *_ = socket.recv_fds(connection, 8, 3)
    data = b""
    while size and len(data) < int.from_bytes(size):
        if not (part := connection.recv(1 << 20)):
            return None, streams
        data += part
    return (Program(*json.loads(data)) if data else None), streams


class _Client(NamedTuple):
    """A connection, its child's process id, and a descriptor of the child."""

    connection: socket.socket
    child: int
    process: int


def _next_program(listening: socket.socket) -> Program:
    """Fork a child for each client, hand on signals to it, and report how it ended. Returns in each child, and ends the
    server with its standard input."""
    clients: dict[int, _Client] = {}  # each by both descriptors
    poll = select.poll()
    for descriptor in (0, listening.fileno()):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = poll.poll()[0][0]
        if ready == 0:
            for client in clients.values():
                signal.pidfd_send_signal(client.process, signal.SIGKILL)
            sys.exit()
        if ready == listening.fileno():
            connection, _ = listening.accept()
            program, streams = _receive(connection)
            child = os.fork() if program else -1
            if program and child == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for one in (listening, connection, *(client.connection for client in clients.values())):
                    one.close()
                for descriptor in {*streams, *(client.process for client in clients.values())}:
                    os.close(descriptor)
                os.setsid()
                return program
            for stream in streams:
                os.close(stream)
            if not program:
                connection.close()
                continue
            client = _Client(connection, child, os.pidfd_open(child))
            for descriptor in (client.process, connection.fileno()):
                clients[descriptor] = client
                poll.register(descriptor, select.POLLIN)
            continue
        client = clients[ready]
        if ready != client.process:
            signals = client.connection.recv(100) or bytes([signal.SIGKILL])
            for number in signals:
                signal.pidfd_send_signal(client.process, number)
            if signals[-1] != signal.SIGKILL:
                continue
        status = os.waitstatus_to_exitcode(os.waitpid(client.child, 0)[1])
        with contextlib.suppress(OSError):  # the client has been killed
            client.connection.sendall(status.to_bytes(8, signed=True))
        for descriptor in (client.process, client.connection.fileno()):
            poll.unregister(descriptor)
            del clients[descriptor]
        os.close(client.process)
        client.connection.close()


def _run(program: Program) -> None:
    """Run it as Python does: a script, `-m module` or `-c code`."""
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)
    how, *arguments = (one for one in program.arguments if one != "-u")  # the server is unbuffered, too
    sys.path[:0] = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    if how == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    # Not by runpy, which frees what the program leaves when it is done: Python does so as it ends.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if how == "-c":
        code, file, sys.argv = arguments[0], "<string>", [how, *arguments[1:]]
    else:
        code, file, sys.argv = Path(how).read_text(), how, [how, *arguments]
        main.__file__ = file
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    exec(compile(code, file, "exec"), main.__dict__)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    # An optimizer imports PyTorch's compiler, for more than a second.
    for module in ("torch.distributed.run", "torch._dynamo", "av", *LOADERS):
        importlib.import_module(module)
    gc.freeze()
    _run(_next_program(socket.socket(fileno=int(sys.argv[1]))))
