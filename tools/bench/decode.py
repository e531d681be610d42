"""What decoding costs on a GPU: stock DALI, streamvid's decoder, and the limit of the chip.

    python -m tools.bench.decode [--quick] [--only TEXT] [--clips DIR] [--json FILE [--resume]]
    python -m tools.bench.decode --clips DIR --make-clips       # make the clips alone; needs no GPU

Batches of windows of 16 frames at random places, the same packets three ways:

- stock: `fn.decoders.video`, one stream per sample, once, with the better of two numbers of threads. It gets 64 clips
  at most; for larger batches its time is extrapolated: marked with ~;
- streamvid: `GpuDecoder`, batch after batch, as the loader runs it;
- limit: the same packets as long streams, one per NVDEC engine, through persistent decode sessions; frames are dropped.

Frames of the first batch are compared with stock's, bit for bit. Memory is how much less the GPU has free while batches
run, over the size of two batches of frames, which is what is alive at a time. Each kind of clips has a process of its
own. With `--json` all that is known is written after each row.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.bench.decode_rows import FORMATS, WINDOW, Case, make_clips
from tools.bench.isolated import PartError, run_isolated
from tools.bench.report import Check, Report, Row, arguments, finish, machine

GOPS: Final = (15, 60, 250)
STRIDES: Final = (1, 8)
OTHER_BATCHES: Final = (16, 256)
"""Beside 64."""
BARS: Final = {"720p": 2.5, "1080p": 8.0, "640x272": 3.0}
"""Gains over stock that issue 6 asks for at a batch of 64."""
OF_LIMIT: Final = 0.9
MEMORY: Final = 2.0
ROW_SECONDS: Final = 150.0
"""The most that a row may take, with the start of its process."""

Found = dict[str, dict[str, Any]]
"""What was measured, by the case's name."""


def all_cases(*, quick: bool = False, only: str = "") -> list[Case]:
    """All rows; other batch sizes than 64 for one GOP alone, as stock DALI takes long."""
    gops, kinds = (GOPS[:1], list(FORMATS)[::2]) if quick else (GOPS, list(FORMATS))
    found = []
    for kind in kinds:
        found += [Case(kind, gop, stride, 64) for gop in gops for stride in STRIDES]
        if not quick:
            found += [Case(kind, GOPS[0], 1, batch) for batch in OTHER_BATCHES]
    return [case for case in found if only in case.name]


def measure(wanted: Sequence[Case], folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Rows as they come, each with its case; one that fails has an error, and the next gets a new process."""
    left = list(wanted)
    while left:
        alike = [case for case in left if case.kind == left[0].kind]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as work:
            content = {"clips": str(folder), "rounds": rounds, "cases": [dataclasses.asdict(case) for case in alike]}
            json.dump(content, work)
            work.flush()
            done = 0
            try:
                for row in run_isolated("tools.bench.decode_rows", [work.name], seconds=ROW_SECONDS):
                    done += 1
                    yield row
            except PartError as error:
                if done < len(alike):
                    yield {**dataclasses.asdict(alike[done]), "error": str(error)}
                    done += 1
        left = [case for case in left if case not in alike[: max(done, 1)]]


def name_of(row: Mapping[str, Any]) -> str:
    """The case's name."""
    return Case(**{field.name: row[field.name] for field in dataclasses.fields(Case)}).name


def table(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows as they are printed."""
    rows: list[Row] = []
    for row in found:
        about: dict[str, Any] = {
            "clips": row["kind"],
            "GOP": row["gop"],
            "stride": row["stride"],
            "batch": row["batch"],
        }
        if row["error"]:
            columns = ("stock s", "streamvid s", "limit s", "delivered/s", "decoded/s", "x stock", "of limit", "memory")
            rows.append({**about, **dict.fromkeys(columns, "-"), "same": "does not run"})
            continue
        mine = row["streamvid_s"]
        about |= {
            "stock s": f"{'~' if row['stock_clips'] < row['batch'] else ''}{row['stock_s']:.3f}",
            "streamvid s": f"{mine:.3f}",
            "limit s": f"{row['limit_s']:.3f}",
            "delivered/s": row["batch"] * WINDOW / mine,
            "decoded/s": row["packets"] / mine,
            "x stock": row["stock_s"] / mine,
            "of limit": row["limit_s"] / mine,
            "memory": row["memory"],
            "same": str(row["same"]),
        }
        rows.append(about)
    return rows


def checks(found: Sequence[Mapping[str, Any]]) -> list[Check]:
    """The bars of issue 6."""
    made = []
    for row in found:
        name = name_of(row)
        if row["error"]:
            continue
        if row["batch"] == 64:
            bar = next(bar for size, bar in BARS.items() if size in row["kind"])
            made.append(Check.at_least(f"x stock, {name}", row["stock_s"] / row["streamvid_s"], bar))
        made.append(Check.at_least(f"of the limit, {name}", row["limit_s"] / row["streamvid_s"], OF_LIMIT))
        made.append(Check.at_most(f"memory, {name}", row["memory"], MEMORY))
        made.append(Check.at_least(f"same frames, {name}", float(row["same"]), 1.0))
    return made


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help='rows whose name holds this, as "1080p, GOP 15"')
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken, if they take 5 s or less")
    parser.add_argument("--clips", type=Path, metavar="DIR", help="keep the clips there, and take those that are there")
    parser.add_argument("--make-clips", action="store_true", help="make the clips, and measure nothing")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no other row after this time")
    parser.add_argument("--resume", action="store_true", help="measure what the JSON file lacks")
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume goes on with the file of --json: give it")
    if options.make_clips and options.clips is None:
        parser.error("--make-clips needs --clips: where to keep them")
    return options


def measure_all(found: Found, options: argparse.Namespace, folder: Path, write: Callable[[], None]) -> None:
    """Put the rows that are missing into `found`."""
    wanted = [case for case in all_cases(quick=options.quick, only=options.only) if case.name not in found]
    make_clips(wanted, folder)
    if options.make_clips:
        return
    started = time.monotonic()
    for row in measure(wanted, folder, 1 if options.quick else options.rounds):
        found[name_of(row)] = row
        write()
        shown = row["error"] or {key: round(value, 4) for key, value in row.items() if isinstance(value, float)}
        print(f"{time.monotonic() - started:5.0f} s  {name_of(row)}: {shown}", file=sys.stderr, flush=True)
        if time.monotonic() - started > 60 * options.minutes:
            break


def main() -> int:
    """The program."""
    import torch

    options = parse()
    if not (torch.cuda.is_available() or options.make_clips):
        print("tools.bench.decode needs an NVIDIA GPU and torch for CUDA", file=sys.stderr)
        return 2
    found: Found = {}
    about = machine()
    if options.resume and options.json.exists():
        details = json.loads(options.json.read_text(encoding="utf-8"))["details"]
        # What failed is tried again.
        found = {name_of(row): row for row in details if not row["error"]}

    def report() -> Report:
        order = [case.name for case in all_cases()]
        rows = sorted(found.values(), key=lambda row: order.index(name_of(row)))
        notes = [f"Windows of {WINDOW} frames; seconds per batch; memory in frames of two batches; ~: extrapolated."]
        notes += [f"does not run: {name_of(row)} ({row['error']})" for row in rows if row["error"]]
        return Report("decode", table(rows), checks(rows), notes, rows)

    def write() -> None:
        if options.json is not None:
            report().write(options.json, quick=options.quick, about=about)

    with tempfile.TemporaryDirectory() as name:
        measure_all(found, options, options.clips or Path(name), write)
    if options.make_clips:
        return 0
    if not found:
        print("no row has that in its name", file=sys.stderr)
        return 2
    return finish(report(), options, about)


if __name__ == "__main__":
    raise SystemExit(main())
