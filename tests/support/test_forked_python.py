"""The Python that is forked ends as its programs do, and they as it does."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.clock import soon
from tests.support.processes import alive, command_line, processes_below

# Prints its process id, and waits; ends with 7 at a SIGTERM.
WAITS = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1), ("import os; os.abort()", -signal.SIGABRT)],
)
def test_it_ends_as_the_program_does(forked_python: Path, code: str, status: int) -> None:
    assert subprocess.run([forked_python, "-c", code], stderr=subprocess.DEVNULL, timeout=60).returncode == status


def test_arguments_streams_environment_and_folder(forked_python: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("ONE = 1")
    (tmp_path / "script.py").write_text(
        "import beside, os, sys\nprint(__name__, sys.argv[1:], sys.stdin.read(), os.environ['TWO'], os.getcwd())"
    )
    environment = os.environ | {"TWO": "2"}
    options = {"input": "in", "env": environment, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([forked_python, "-u", "script.py", "a", "b c"], **options)  # type: ignore[call-overload]
    assert done.stdout == f"__main__ ['a', 'b c'] in 2 {tmp_path}\n", done.stderr


def test_its_server_is_no_child_of_the_tests(forked_python: Path) -> None:
    """Some look for children, and kill them."""
    assert subprocess.run([forked_python, "-c", "pass"], timeout=60).returncode == 0
    assert not [pid for pid in processes_below(os.getpid()) if b"forked_python" in command_line(pid)]


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGTERM, 7), (signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_signals_reach_the_program(forked_python: Path, sent: signal.Signals, status: int) -> None:
    with subprocess.Popen(
        [forked_python, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as client:
        assert client.stdout is not None
        program = int(client.stdout.readline())
        client.send_signal(sent)
        assert client.wait(60) == status
    assert soon(lambda: not alive(program))
