"""The command: its output, on stdout or stderr, and its exit codes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import streamvid
from streamvid.cli.main import main
from streamvid.cli.output import parse_size
from streamvid.inspection.describe import describe
from streamvid.text import format_bytes, format_duration
from tests.support.packed import NATURAL_ORDER, add_unreadable, make_videos
from tests.support.refused import assert_refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli")
    make_videos(root / "in")
    (root / "labels.csv").write_text("path,label\n" + "".join(f"{name},{name[0]}\n" for name in NATURAL_ORDER))
    assert main(["pack", str(root / "in"), str(root / "ds"), "--labels", str(root / "labels.csv")]) == 0
    return root


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamvid", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_pack_says_what_it_did(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "in", tmp_path / "in")
    reasons = add_unreadable(tmp_path / "in")
    (tmp_path / "in/[red]esc\x1b[2J.mp4").write_text("x")
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "ds"), "--shard-size", "30kB", "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert "packed 6 clips (48 frames, " in out
    assert "rejected 5 videos, listed in" in out
    for name in reasons:
        assert f"  {name}: " in out
    assert "[red]esc" in out
    assert "\x1b" not in out
    assert err == ""


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(folder / "ds")]) == 0
    out, err = capsys.readouterr()
    for text in ("6 in 1 shard\n", "h264 (3), hevc (1), mjpeg (1), vp9 (1)", "6 clips, 4 classes", "1 rotated", "48\n"):
        assert text in "".join(line.rstrip() + "\n" for line in out.splitlines())
    assert err == ""
    info = describe(folder / "ds")
    assert (info.clips, info.frames, info.shards, info.labelled, info.classes) == (6, 48, 1, 6, 4)
    assert info.fps.greatest == pytest.approx(30, rel=0.01)
    assert info.fps.least == pytest.approx(24, rel=0.01)
    assert info.gop.greatest == 9
    assert info.duration.least == pytest.approx(4 / 30, abs=2e-3)


def test_verify_and_its_exit_code(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder / "ds"), "--decode"]) == 0
    out = capsys.readouterr().out
    assert "6 clips in 1 shard" in out
    assert "every frame decoded" in out
    assert "no problems" in out
    damaged = shutil.copytree(folder / "ds", tmp_path / "ds")
    data = bytearray((damaged / "shards/00000000.tar").read_bytes())
    data[2000] ^= 1
    (damaged / "shards/00000000.tar").write_bytes(data)
    assert main(["verify", str(damaged)]) == 1
    out = capsys.readouterr().out
    assert "2 problems in 1 shard:" in out
    assert "the SHA-256 of its mp4 is not the one in the parquet" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["info", "nowhere"], "no dataset at nowhere"),
        (["verify", "nowhere"], "no dataset at nowhere"),
        (["pack", "nowhere", "out"], "no such file or folder: nowhere"),
        (["pack", "/dev/null", "out"], "/dev/null is a pipe, a device or a socket"),
        (["index", "in", "out", "--update"], "leave out --append or --update"),
        (["pack", "in", "ds"], "ds holds a dataset already"),
        (["pack", "in", "ds/shards/"], "ds/shards/ is within a dataset: name ds, or another place"),
        (["pack", "in", "out", "--workers", "0"], "--workers 0"),
        (["pack", "in", "out", "--workers", "99999"], "--workers 99999: give 1 to 1024"),
        (["pack", "in", "out", "--labels", "none.csv"], "none.csv"),
        (["pack", "in", "labels.csv"], "labels.csv is a file"),
        (["pack", "in", "labels.csv/x"], "a part of the path is a file"),
        (["verify", "ds", "--workers", "-1"], "--workers -1"),
        (["pack", "none", "out", "--retry-for=-1"], "streamvid: --retry-for must be a number of seconds"),
        (["info", "ds", "--revision", "-1"], "streamvid: --revision must be a whole number of at least 0"),
        (["extract", "ds", "v0", "out/"], "a key has no slash: the folder comes before keys"),
        (["info", "zzz://x/y"], "'zzz' is not a known protocol"),
    ],
)
def test_errors_are_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(folder)
    assert_refused(capsys, arguments, said)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), 2, "streamvid: /tmp/x: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "streamvid: /x: Permission denied; check who"),
        (MemoryError(), 2, "streamvid: out of memory: use fewer workers or smaller videos\n"),
        (KeyboardInterrupt(), 130, "streamvid: interrupted\n"),
        (OSError(errno.EFBIG, "File too large"), 2, "streamvid: a file would be longer than this process may write"),
        (OSError(errno.EMFILE, "Too many open files", "/x"), 2, "streamvid: this process has all files open that it"),
        (ModuleNotFoundError(name="torch"), 2, "streamvid: the Python module torch is missing: install streamvid"),
        (ZeroDivisionError("x"), 2, "streamvid: unexpected ZeroDivisionError: x (this is a defect of streamvid"),
        (ImportError("x.so: failed to map segment from shared object"), 2, "streamvid: there is no memory left for "),
        (RuntimeError("can't start new thread"), 2, "streamvid: no further thread or process can be started: raise "),
    ],
)
def test_whatever_happens_it_is_one_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("streamvid.inspection.verify.verify", fail)
    assert main(["verify", str(folder / "ds")]) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_a_command_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verfy", "ds"])
    assert capsys.readouterr().err.endswith("did you mean 'verify'?; see streamvid --help\n")
    with pytest.raises(SystemExit):
        main(["delete", "ds"])
    assert "did you mean 'forget'?; see streamvid --help" in capsys.readouterr().err
    for mistake, meant in ((["--codec", "HEVC"], "'hevc'"), (["--shard_sise", "1GB"], "'--shard-size'")):
        with pytest.raises(SystemExit):
            main(["pack", "in", "ds", *mistake])
        assert f"did you mean {meant}?; see" in capsys.readouterr().err


def test_help_keeps_names_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["extract", "--help"])
    assert "Write clips as MP4 files, with their metadata as JSON" in " ".join(capsys.readouterr().out.split())


def test_a_working_directory_that_was_removed(tmp_path: Path) -> None:
    """MKL would end the process, in which its library cannot be found then, with a sentence of its own."""
    (gone := tmp_path / "gone").mkdir()
    code = f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); "
    code += "from streamvid.__main__ import run; sys.exit(run())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "doctor"], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.strip() == "streamvid: the working directory was removed: change to another one"


def test_what_the_encoding_of_a_terminal_lacks_is_escaped() -> None:
    shown = run("ls", "--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--columns NAME,\\u2026" in shown.stdout


def test_an_error_that_cannot_be_told_has_its_code(tmp_path: Path) -> None:
    for arguments in (["info", tmp_path / "none"], ["nope"]):
        assert run_into("/dev/full", *arguments) == 2


def test_output_that_cannot_be_written_is_named(folder: Path) -> None:
    """The dataset of a pack is whole then, and not what lacks space."""
    for arguments in (["info", folder / "ds"], ["ls", folder / "ds", "--json"]):
        with open("/dev/full", "w") as stdout:
            command = [sys.executable, "-m", "streamvid", *map(str, arguments)]
            ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        assert (ended.returncode, ended.stderr) == (2, "streamvid: the output (stdout): No space left on device\n")


def run_into(place: str, *arguments: object) -> int:
    with open(place, "w") as stderr:
        command = [sys.executable, "-m", "streamvid", *map(str, arguments)]
        return subprocess.run(command, stderr=stderr, timeout=120, check=False).returncode


def test_as_a_process(folder: Path) -> None:
    """Piped, without a terminal, and cut off by whoever reads it."""
    shown = run("info", folder / "ds")
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert max(len(line.rstrip()) for line in shown.stdout.splitlines()) <= 200
    failed = run("info", folder / "nowhere")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("streamvid: no dataset at ")
    cut = subprocess.run(
        f"{sys.executable} -m streamvid info {folder / 'ds'} | :; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert cut.stderr == ""
    assert cut.stdout.strip() == "141"


_DROPPED = """
import os, signal, sys, time
from streamvid.cli import info
import streamvid
from streamvid.cli.main import main

class Slow:
    def __del__(self):
        print("now", flush=True)
        time.sleep(10)

def run(arguments):
    WHERE
    time.sleep(30)
    return 0

info.run = run
info.add_parser = lambda commands: commands.add_parser("info").set_defaults(run=run)
sys.exit(main(["info"]))
"""


_FINALISER = "Slow()"
_SWALLOWED = """
    try:
        Slow.__del__(None)
    except BaseException:
        pass"""


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("where", [_FINALISER, _SWALLOWED])
def test_a_signal_is_not_lost(stop: signal.Signals, code: int, where: str) -> None:
    """Python goes on after whatever is raised in a finaliser, and some libraries do anywhere."""
    process = subprocess.Popen(
        [sys.executable, "-c", _DROPPED.replace("WHERE", where)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.send_signal(stop)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code
    assert said == f"streamvid: {'interrupted' if code == 130 else 'terminated'}\n"


_IGNORED = """
import os, signal, sys
from streamvid.cli import info
from streamvid.cli.main import main

def run(arguments):
    os.kill(os.getpid(), signal.SIGHUP)
    print("goes on")
    return 0

signal.signal(signal.SIGHUP, signal.SIG_IGN)
info.add_parser = lambda commands: commands.add_parser("info").set_defaults(run=run)
sys.exit(main(["info"]))
"""


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    ended = subprocess.run([sys.executable, "-c", _IGNORED], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "goes on\n", "")


_EARLY = """
import os, signal, sys
from streamvid.__main__ import run

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "streamvid.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.exit(run())
"""


def test_ctrl_c_while_modules_are_imported() -> None:
    ended = subprocess.run([sys.executable, "-c", _EARLY], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (130, "streamvid: interrupted\n")


def test_a_package_that_is_missing() -> None:
    """Whichever: those that the command itself imports, too."""
    for name in ("rich", "fsspec", "pyarrow", "numpy"):
        code = f"import sys; sys.modules[{name!r}] = None\nfrom streamvid.__main__ import run\nsys.exit(run())"
        ended = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stdout) == (2, ""), name
        said = f"streamvid: the Python module {name}\\S* is missing: install streamvid again, with all that it "
        assert re.match(said, ended.stderr)


def test_no_memory_for_the_modules_of_the_command() -> None:
    code = """
import sys

class NoMemory:
    def find_spec(self, name, *_):
        if name == "rich":
            raise ImportError("Please read this.\\n\\nlibz.so.1: failed to map segment from shared object\\n")

sys.meta_path.insert(0, NoMemory())
from streamvid.__main__ import run
sys.exit(run())
"""
    ended = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    said = "streamvid: there is no memory left for this process (libz.so.1: failed to map segment from shared object): "
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1


def test_files_named_as_modules(folder: Path, tmp_path: Path) -> None:
    """Of the user's, in the working directory, where `python -m` looks first."""
    for name in ("av", "json", "numpy", "queue", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("print('not that one')\n")
    ended = run("verify", folder / "ds", cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "not that one" not in ended.stdout


@pytest.mark.parametrize("name", ["numpy", "pyarrow", "av", "random"])
def test_a_file_on_the_path_that_hides_a_module(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("")
    path = os.pathsep.join((str(tmp_path), os.getcwd()))
    ended = run("verify", folder / "ds", "--decode", cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})
    said = f"streamvid: {tmp_path}/{name}.py hides the Python module {name}: rename it, or take its folder out of "
    assert (ended.returncode, ended.stderr) == (2, f"{said}PYTHONPATH\n")


def test_from_a_zip(folder: Path, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "app"), "zip", Path(streamvid.__file__).parents[1], "streamvid")
    ended = run("info", folder / "ds", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path / "app.zip")})
    assert (ended.returncode, ended.stderr) == (0, "")


def test_help_and_version() -> None:
    assert run("--help").returncode == 0
    assert run("pack", "--help").stdout.startswith("usage: streamvid pack")
    assert run("--version").stdout.startswith("streamvid ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND; see streamvid --help"),
        (["pack", "one"], "the following arguments are required: DATASET; see streamvid pack --help"),
        (
            ["pack", "in", "out", "--nope", "1"],
            "unrecognized arguments: --nope 1; write streamvid pack INPUT [INPUT ...] DATASET; see ",
        ),
        (
            ["info", "-i", "in"],
            "unrecognized arguments: -i; write streamvid info DATASET, and -- before a name that begins with -; see ",
        ),
        (
            ["split", "a", "b", "--shares", "a=1", "b"],
            "unrecognized arguments: b; write streamvid split (--shares ",
        ),
        (["preview", "ds", "--sample=All"], "unrecognized arguments: --sample=All; did you mean '--sampling'?; see "),
        (["pack", "in", "out", "--engine", "x"], "argument --engine: invalid choice: 'x'"),
        (["pack", "in", "out", "--clip", "x"], "argument --clip: 'x' is not a length; write 10s"),
        (["nope"], "argument COMMAND: invalid choice: 'nope'"),
        (["ls", "ds", "--where", "a", "--where=b"], "argument --where: it is given more than once, and takes one"),
        (["pack", "in", "out", "--labels", "a", "--labels", "b"], "argument --labels: it is given more than once"),
    ],
)
def test_wrong_options_are_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"streamvid: {said}")
    assert "--help\n" in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_destination_without_permission(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["pack", str(folder / "in"), str(tmp_path / "ds")]) == 2
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("256MiB", 256 << 20), ("256M", 256 << 20), ("1GB", 10**9), ("1.5 k", 1536), ("2tib", 2 << 40)],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1 XB", "1e9", "nan"])
def test_invalid_sizes_are_refused(text: str) -> None:
    import argparse

    with pytest.raises(argparse.ArgumentTypeError):
        parse_size(text)


def test_numbers_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1, 999, 1500, 10**9, 5 * 10**15)] == [
        "0 bytes",
        "1 byte",
        "999 bytes",
        "1.5 kB",
        "1.0 GB",
        "5.0 PB",
    ]
    assert [format_duration(s) for s in (0.04, 59.94, 61, 3725)] == ["0.0 s", "59.9 s", "1 min 01 s", "1 h 02 min 05 s"]


def test_a_long_pack_in_a_log_file_says_how_far_it_is(folder: Path, tmp_path: Path) -> None:
    """Without --verbose, and without a terminal."""
    script = (
        "import sys, streamvid.progress; streamvid.progress.LOG_S = 0.01\n"
        "from streamvid.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "pack", str(folder / "in"), str(tmp_path / "ds"), "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "streamvid: packing: 0/" in done.stderr


def test_verbose_is_the_librarys_own_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def chatty(self: object, *_: object, **__: object) -> None:
        for name in ("botocore.auth", "aiobotocore", "asyncio", "fsspec", "urllib3"):
            logging.getLogger(name).debug("Authorization: AKIA-secret")
            logging.getLogger(name).warning("a warning of %s", name)
        logging.getLogger("streamvid.storage").debug("our detail")
        raise KeyboardInterrupt

    monkeypatch.setattr("streamvid.inspection.describe.describe", chatty)
    for arguments, detail in ((["info", "--verbose"], True), (["--verbose", "info"], True), (["info"], False)):
        assert main([*arguments, str(folder / "ds")]) == 130
        shown = capsys.readouterr().err
        assert "AKIA" not in shown
        assert "a warning of botocore.auth" in shown
        assert ("our detail" in shown) == detail


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_info_fits_its_terminal(folder: Path, columns: int) -> None:
    process, screen = pty.fork()
    if not process:
        os.environ["COLUMNS"] = str(columns)
        os.execv(sys.executable, [sys.executable, "-m", "streamvid", "info", str(folder / "ds")])
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(screen, 1 << 16):
            shown += part
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    lines = [line.rstrip() for line in shown.decode().splitlines()]
    assert max(map(len, lines)) <= columns
    # A bar and its count are on one line.
    assert any(re.search(r"\d  #+ \d+$", line) for line in lines), lines
    assert not any(re.fullmatch(r"\s*#+( \d+)?", line) for line in lines), lines


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-"])
def test_with_closed_streams(folder: Path, closed: str) -> None:
    """As some daemons start programs. The next files that are opened must not take their numbers."""
    command = [sys.executable, "-m", "streamvid", "info", str(folder / "ds")]
    shell = ["bash", "-c", f'exec "$@" {closed}', "streamvid", *command]
    ended = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("frames" in ended.stdout) == (closed == "2>&-")


def test_what_may_be_left_out_is_not_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["extract", str(folder / "ds")])
    assert "required: FOLDER;" in capsys.readouterr().err
