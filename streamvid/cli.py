"""The command `streamvid`: pack, info and verify."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Final, NoReturn

from rich.console import Console
from rich.table import Table

from streamvid import __version__
from streamvid.errors import InputError, StreamvidError

_SHOWN: Final = 20
"""Rejected videos or problems that are printed one by one."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FAILED, UNUSABLE, INTERRUPTED, TERMINATED, BROKEN_PIPE = 1, 2, 130, 143, 141
"""Exit codes: problems found by verify; an error; and what shells expect of Ctrl-C, SIGTERM and SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code: 0, 1 if `verify` found problems, 2 for an error, 130 for Ctrl-C."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.WARNING,
        format="streamvid: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    logging.getLogger("libav").setLevel(logging.ERROR)
    # Leave as on Ctrl-C, so that temporary files are removed and worker processes end.
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python must not try to flush the rest of it on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except StreamvidError as error:
        return _fail(str(error), UNUSABLE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", UNUSABLE)
    except MemoryError:
        return _fail("out of memory: use fewer workers or smaller videos", UNUSABLE)
    except Exception as error:
        logging.getLogger(__name__).debug("unexpected error", exc_info=True)
        hint = "this is a defect of streamvid; --verbose shows where"
        return _fail(f"unexpected {type(error).__name__}: {error} ({hint})", UNUSABLE)
    finally:
        signal.signal(signal.SIGTERM, before)


def parse_size(text: str) -> int:
    """``256MiB``, ``256M``, ``1GB`` or plain bytes → bytes. MB and the like are powers of 1000, M and MiB of 1024."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 256MiB, 1GB or a number of bytes")
    number, prefix, suffix = match.groups()
    units = _DECIMAL if (suffix or "").lower() == "b" else _UNITS
    size = int(float(number) * units[prefix.lower()])
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive size")
    return size


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="streamvid", description="Video datasets for training, in WebDataset shards.")
    parser.add_argument("--version", action="version", version=f"streamvid {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("pack", help="pack videos into a dataset", description="Pack videos into a dataset.")
    command.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="file, folder, 'glob', or list (.csv, .jsonl, .parquet)"
    )
    command.add_argument("destination", metavar="DATASET", help="folder or s3://bucket/prefix to pack into")
    command.add_argument("--labels", metavar="LIST", help=".csv, .jsonl or .parquet with columns path and label")
    command.add_argument("--shard-size", type=parse_size, default="256MiB", metavar="SIZE", help="default 256MiB")
    command.add_argument("--name", help="name of the dataset; by default that of its folder")
    command.add_argument("--workers", type=int, metavar="N", help="processes; by default one per core")
    command.add_argument("--overwrite", action="store_true", help="replace a dataset that is there")
    command.set_defaults(run=_pack)

    command = commands.add_parser("info", help="show what is in a dataset", description="Show what is in a dataset.")
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.set_defaults(run=_info)

    command = commands.add_parser(
        "verify", help="check a dataset", description="Check a dataset; exit code 1 if damaged."
    )
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.add_argument("--decode", action="store_true", help="decode every frame as well")
    command.add_argument("--workers", type=int, metavar="N", help="processes; by default one per core")
    command.set_defaults(run=_verify)

    for command in commands.choices.values():
        command.add_argument("--verbose", action="store_true", help="say more on stderr")
    return parser


# Each command imports what it needs, so that a wrong option is reported at once.


def _pack(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.info import counted, in_bytes, in_time
    from streamvid.packing.destination import REJECTED_FILE
    from streamvid.packing.pack import pack
    from streamvid.store.storage import join, redact

    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: give 1 or more, or leave it out")
    report = pack(
        arguments.inputs,
        arguments.destination,
        labels=arguments.labels,
        shard_size=arguments.shard_size,
        name=arguments.name,
        workers=arguments.workers,
        overwrite=arguments.overwrite,
    )
    manifest = report.manifest
    console = _console()
    console.print(
        f"packed {counted(manifest.clips, 'clip')} ({manifest.frames:,} frames, {in_time(manifest.seconds)}) into "
        f"{counted(len(manifest.shards), 'shard')}, {in_bytes(manifest.tar_bytes)}, "
        f"at {redact(report.destination)} in {in_time(report.elapsed)}"
    )
    if report.rejected:
        where = redact(join(report.destination, REJECTED_FILE))
        console.print(f"rejected {counted(len(report.rejected), 'video')}, listed in {where}:")
        for rejected in report.rejected[:_SHOWN]:
            console.print(f"  {_printable(rejected.source)}: {_printable(rejected.reason)}")
        if len(report.rejected) > _SHOWN:
            console.print(f"  and {len(report.rejected) - _SHOWN:,} more")
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.info import describe, render

    _console().print(render(describe(arguments.dataset)))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.info import counted, in_bytes, in_time
    from streamvid.inspection.verify import verify

    report = verify(arguments.dataset, decode=arguments.decode, workers=arguments.workers)
    manifest = report.manifest
    console = _console()
    what = "every frame decoded" if report.decoded else "files, indexes and packets checked"
    console.print(
        f"{counted(manifest.clips, 'clip')} in {counted(len(manifest.shards), 'shard')}, "
        f"{in_bytes(manifest.tar_bytes)}: {what} in {in_time(report.elapsed)}"
    )
    if report.ok:
        console.print("no problems")
        return 0
    damaged = Counter(problem.shard for problem in report.problems)
    console.print(f"{counted(len(report.problems), 'problem')} in {counted(len(damaged), 'shard')}:")
    table = Table("shard", "clip", "problem", box=None, pad_edge=False)
    for problem in report.problems[:_SHOWN]:
        table.add_row(problem.shard, _printable(problem.clip), _printable(problem.what))
    console.print(table)
    if len(report.problems) > _SHOWN:
        console.print(f"and {len(report.problems) - _SHOWN:,} more")
    return FAILED


def _console() -> Console:
    """Plain text: nothing in a name is markup, and where nobody watches, nothing is folded to a screen's width."""
    seen = sys.stdout.isatty()
    return _Output(markup=False, emoji=False, highlight=False, soft_wrap=not seen, width=None if seen else 200)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        # rich would exit with 1, which is how `verify` says that a dataset is damaged.
        raise BrokenPipeError


def _printable(text: str) -> str:
    """Names come from other people's files, and a terminal obeys control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _fail(text: str, code: int) -> int:
    print(f"streamvid: {_printable(text)}", file=sys.stderr)
    return code


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
