"""What decoding costs on a GPU: streamvid's decoder and loader against the limit of the chip.

    python -m tools.bench.decode [--quick] [--only TEXT] [--clips DIR] [--json FILE]
    python -m tools.bench.make_clips DIR                        # before, on a machine without a GPU

Batches of windows of 16 frames at random places, full-size RGB, same packets, same run; pictures decoded a second:

- limit: decode sessions alone, one for each NVDEC engine, no picture wanted: the faster of PyNvVideoCodec and the
  native module;
- decoder: `GpuDecoder`, batch after batch, as the loader runs it;
- stock: `fn.decoders.video`, one stream per sample;
- loop: seconds beyond the decoder's that a `StreamLoader` takes, whose loop sums each batch, or does nothing;
- 132 sizes: random batches of clips of 132 sizes, against batches of one size.

Of every row, frames are compared, bit for bit, with FFmpeg's of the same packets, or stock DALI's. Memory is how much
less the GPU has free while batches run, over the size of two batches of frames, which is what is alive at a time. Host:
what submitting a batch takes, and the cores that threads keep busy while batches are decoded. All rows have one
process; after one that fails, the next get another.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.bench.decode_cases import FORMATS, Case, make_clips
from tools.bench.decode_rows import ROW_SECONDS, TOO_LARGE, WINDOW
from tools.bench.isolated import PartError, run_isolated
from tools.bench.report import Check, Report, Row, arguments, finish

FEW_CORES: Final = 4
OF_LIMIT: Final = 0.95
OF_ONE_SIZE: Final = 0.95
BEYOND: Final = 1.03


def all_cases(*, quick: bool = False, only: Sequence[str] = ("",)) -> list[Case]:
    """All rows, what issue 16 asks for first; stock DALI last, which opens decoders for seconds."""
    main, others = list(FORMATS)[:5], list(FORMATS)[5:]

    def rows(kinds: Sequence[str], cores: int) -> list[Case]:
        return [
            Case(kind, 15, 1, batch, cores, loop=kind.endswith(" 720p") and batch < (64 if cores else 256))
            for kind in kinds
            for batch in (16, 64, 256)
        ]

    found = [*rows(main[:2], 0), Case(others[-1], 30, 1, 64), *rows(main[:2], FEW_CORES), *rows(main[2:4], 0)]
    found += [*(Case(kind, 30, 1, 64) for kind in others[:-1]), *rows(main[4:], 0), *rows(main[2:], FEW_CORES)]
    found += [Case(kind, 60, 8, 64) for kind in main[:4]]
    found += [Case(kind, 15, 1, 16, stock=True) for kind in main]
    wanted = [case for case in found if any(text in case.name for text in only)]
    return [case for case in wanted if not quick or (case.batch == 64 and case.gop < 60)]


def measure(wanted: Sequence[Case], folder: Path) -> Iterator[dict[str, Any]]:
    """Rows as they come; one that fails has an error."""
    left = list(wanted)
    while left:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as work:
            json.dump({"clips": str(folder), "cases": list(map(dataclasses.asdict, left))}, work)
            work.flush()
            try:
                for row in run_isolated("tools.bench.decode_rows", [work.name], seconds=ROW_SECONDS):
                    del left[0]
                    yield row
            except PartError as error:
                if left:
                    yield {**dataclasses.asdict(left.pop(0)), "error": str(error)}


def case_of(row: Mapping[str, Any]) -> Case:
    """The row's case."""
    return Case(**{field.name: row[field.name] for field in dataclasses.fields(Case)})


def of_limit(row: Mapping[str, Any]) -> float:
    """Pictures decoded a second over the limit's; of clips of many sizes, over those of one size."""
    return float(row["decoded"] / row.get("one_size", max(row["pynv"], row["native"])))


def same(row: Mapping[str, Any]) -> bool:
    """Whether all frames that were compared are the same."""
    return all(row.get(one, True) for one in ("same", "loop_same", "stock_same"))


def table(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows as they are printed."""
    rows: list[Row] = []
    for row in found:
        case = case_of(row)
        about: dict[str, Any] = {
            "clips": case.kind, "GOP": case.gop, "stride": case.stride, "batch": case.batch,
            "cores": str(case.cores or "all"),
        }  # fmt: skip
        if row["error"]:
            columns = (
                "PyNv/s",
                "native/s",
                "decoder/s",
                "of limit",
                "delivered/s",
                "loop %",
                "x stock",
                "memory",
                "host",
            )
            rows.append({**about, **dict.fromkeys(columns, "-"), "same": row["error"]})
            continue
        limits = [f"{row[name]:,.0f}" if row[name] else "" for name in ("pynv", "native")]
        if "one_size" in row:
            limits = ["one size:", f"{row['one_size']:,.0f}"]
        loops = [row[name] / row["decoding_s"] for name in ("loop_s", "idle_loop_s") if name in row]
        loop = ", ".join(f"{100 * one - 100:+.1f}" for one in loops)
        rows.append(
            {
                **about, "PyNv/s": limits[0], "native/s": limits[1], "decoder/s": row["decoded"],
                "of limit": f"{of_limit(row):.2f}", "delivered/s": row["delivered"], "loop %": loop,
                "x stock": f"{row['decoded'] / row['stock_rate']:.1f}" if "stock_rate" in row else "",
                "memory": f"{row['memory']:.1f}" if row["memory"] else "", "host": row.get("host", ""),
                "same": str(same(row)),
            }
        )  # fmt: skip
    return rows


def checks(found: Sequence[Mapping[str, Any]]) -> list[Check]:
    """The bars of issue 16."""
    made = []
    for row in found:
        name = case_of(row).name
        if row["error"].startswith(TOO_LARGE):
            continue
        if row["error"]:
            made.append(Check(f"does not run: {name}: {row['error']}", 0.0, 1.0, passed=False))
            continue
        bar, what = (OF_ONE_SIZE, "one size's speed") if "one_size" in row else (OF_LIMIT, "the limit")
        made.append(Check.at_least(f"of {what}, {name}", of_limit(row), bar))
        made.append(Check.at_least(f"same frames, {name}", float(same(row)), 1.0))
        if "loop_s" in row:
            made.append(
                Check.at_most(f"of decoding, a loop that sums, {name}", row["loop_s"] / row["decoding_s"], BEYOND)
            )
    return made


def main() -> int:
    """The program."""
    import torch

    parser = arguments(__doc__)
    parser.add_argument("--only", action="append", metavar="TEXT", help='rows whose name holds this: "1080p, GOP 15"')
    parser.add_argument("--clips", type=Path, metavar="DIR", help="keep the clips there, and take those that are there")
    parser.add_argument("--seconds", type=float, default=1e6, help="begin no other row after this time")
    options: argparse.Namespace = parser.parse_args()
    if not torch.cuda.is_available():
        print("tools.bench.decode needs an NVIDIA GPU and torch for CUDA", file=sys.stderr)
        return 2
    wanted = all_cases(quick=options.quick, only=options.only or [""])
    if not wanted:
        print("no row has that in its name", file=sys.stderr)
        return 2
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        make_clips(wanted, options.clips or Path(name))
        for row in measure(wanted, options.clips or Path(name)):
            found.append(row)
            if options.json is not None:  # what is stopped leaves what it has
                Report("decode", table(found), checks(found), (), found).write(
                    options.json, quick=options.quick, about={}
                )
            shown = {key: round(v, 3) for key, v in row.items() if isinstance(v, float | bool)}
            shown |= {"": row["error"] or row.get("host", "")}
            print(f"{time.monotonic() - began:5.0f} s  {case_of(row).name}: {shown}", file=sys.stderr, flush=True)
            if time.monotonic() - began > options.seconds:
                break
    notes = [f"Windows of {WINDOW} frames; pictures a second; loop: beyond decoding; memory in frames of two batches."]
    return finish(Report("decode", table(found), checks(found), notes, found), options)


if __name__ == "__main__":
    raise SystemExit(main())
