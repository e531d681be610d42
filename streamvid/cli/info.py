"""`streamvid info` and `preview`: the content of a dataset, as text and as a web page."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.table import Table

from streamvid.cli.output import SHOWN, Commands, add_command, call, common, console, open_dataset
from streamvid.errors import InputError
from streamvid.loader.calls import sampler_of, transform_of
from streamvid.storage.url import redact
from streamvid.text import format_bytes, format_count, format_duration, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamvid.inspection.describe import Counts, GpuNote, Histogram, Info, Spread
    from streamvid.inspection.duplicates import Duplicates
    from streamvid.inspection.sampling_cost import EpochCost, SamplingCost

_SHOWN: Final = 8
"""Most values of a property that are listed; the others are summed up."""
_BAR: Final = 40
"""Characters of the longest bar."""
_NAMES: Final = 25
"""Width of the column of property names, in characters."""


def add_parser(commands: Commands) -> None:
    """Add the commands and their options."""
    add_command(commands, "info", _info, "show what is in a dataset", common("dataset") | {
        "--sampling SAMPLER": "estimate the cost of a sampling, such as 'Window(16, fps=8)'",
        "--cost PRICE": "with --sampling: requests and bytes of an epoch from a bucket; with the prices of a gigabyte "
        "and of a thousand requests, what that costs",
        "--duplicates": "find clips that hold the same video",
        **common("json roots revision"),
    }, {"cost": {"nargs": "*"}})  # fmt: skip
    chosen = common("dataset where keys revision roots")
    add_command(commands, "preview", _preview, "show a dataset as a web page", chosen | {
        "--out FILE=preview.html": "default: %(default)s",
        "--clips N=48": "clips whose frames are shown; default 48",
        "--sampling SAMPLER=Uniform(8)":
            "frames to show, as in a loader: 'Window(16, fps=8)'; default: %(default)s",
        "--transform TRANSFORM": "transform of the frames, as in a loader: 'Transform(resize=256, crop=224)'",
        "--seed N=0": "seed of the choice of clips, frames and augmentation; default 0",
    }, description="Write an HTML file that shows a dataset: frames of some clips, histograms, a table to filter."
    )  # fmt: skip


# Heavy modules are imported when the command runs, so that --help and wrong options are fast.


def _info(arguments: argparse.Namespace) -> int:
    sampling = None if arguments.sampling is None else sampler_of(arguments.sampling)
    prices = _prices(arguments)
    from streamvid.inspection.describe import describe
    from streamvid.inspection.duplicates import duplicates
    from streamvid.inspection.sampling_cost import epoch_cost, sampling_cost

    dataset = open_dataset(arguments.dataset, arguments, arguments.revision)
    info = describe(dataset)
    cost = None if sampling is None else sampling_cost(dataset, sampling)
    epoch = None if sampling is None or arguments.cost is None else epoch_cost(dataset, sampling, prices=prices)
    found = duplicates(dataset) if arguments.duplicates else None
    if arguments.json:
        more = {"sampling": None if cost is None else asdict(cost)} | (
            {} if found is None else {"duplicates": asdict(found)}
        )
        more |= {} if epoch is None else {"epoch": asdict(epoch)}
        print(json.dumps(asdict(info) | more, indent=1))
        return 0
    out = console()
    out.print(_render(info, cost, epoch, str(arguments.sampling), width=out.width))
    if found is not None:
        for line in _same(found):
            out.print(line)
    return 0


def _prices(arguments: argparse.Namespace) -> tuple[float, float] | None:
    given = arguments.cost
    if given is None:
        return None
    if arguments.sampling is None:
        raise InputError("--cost is of a sampling: give --sampling 'Window(16, fps=8)', too")
    if len(given) not in (0, 2) or not all(0 <= price < math.inf for price in given):
        raise InputError("--cost takes two prices, of a gigabyte and of a thousand requests, or none")
    return (given[0], given[1]) if given else None


def _render(info: Info, cost: SamplingCost | None, epoch: EpochCost | None, sampling: str, *, width: int) -> Table:
    """The statistics of a dataset as a rich renderable.

    Args:
        cost: the cost of a sampler, if requested.
        epoch: an epoch's requests to a bucket, if requested.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(width=_NAMES)
    table.add_column(overflow="fold")
    labels = "none"
    if info.labelled:
        classes = format_count(info.classes, "class", "classes")
        labels = f"{format_count(info.labelled, 'clip')}, {classes}: {_listed(info.labels)}"
    rows = {
        "dataset": f"{info.name} ({redact(info.path)})",
        "revision": f"{info.revision}{_change(info)}",
        "clips": f"{info.clips:,} in {format_count(info.shards, 'shard')}",
        "frames": f"{info.frames:,}",
        "duration": format_duration(info.seconds),
        "size": format_bytes(info.bytes),
        "labels": labels,
        "columns": ", ".join(f"{name} ({kind})" for name, kind in info.columns) or "none",
        "codecs": _listed(info.codecs),
        "pixel formats": _listed(info.formats),
        "frame sizes": _listed(info.sizes) + (f"; {info.rotated:,} rotated" if info.rotated else ""),
        "decoder configurations": f"{info.decoder_configurations:,} (size, codec, pixel format and parameter sets)",
        "frames per second": _spread(info.fps),
        "seconds per clip": _spread(info.duration),
        "": _bars(info.durations, width - _NAMES - 2),
        "packets per random access": _spread(info.gop),
        "non-displayed packets": f"{100 * info.hidden:.2g} %" if info.hidden else "none",
        "for the CPU in GPU runs": _notes(info.gpu.on_cpu),
        "slow where DALI decodes": _notes(info.gpu.slow),
    }
    if cost is not None:
        rows |= _cost(cost, sampling)
    if epoch is not None:
        rows |= _epoch(epoch)
    for name, value in rows.items():
        table.add_row(name, "\n".join(printable(line) for line in value.split("\n")))
    return table


def _change(info: Info) -> str:
    change = info.change
    made = f": {change.command} of {format_count(change.clips, 'clip')}, {change.time}" if change else ""
    return made + (f"; {format_count(info.forgotten, 'clip')} forgotten" if info.forgotten else "")


def _cost(cost: SamplingCost, sampling: str) -> dict[str, str]:
    share = 100 * cost.bytes / cost.whole_bytes
    return {
        "sampling": f"{sampling}; means over {format_count(cost.clips, 'clip')}",
        "  read per clip": f"{format_bytes(round(cost.bytes))} in {cost.reads:.1f} reads, {share:.0f} % of the clip",
        "  decoded per clip": f"{cost.packets:.1f} packets for {cost.frames:.1f} frames: "
        f"{cost.decoded_per_frame:.2f} per frame; whole clips: {cost.whole_packets / cost.frames:.2f}",
    }


def _same(found: Duplicates) -> Iterator[str]:
    yield (
        f"duplicates: {format_count(found.clips, 'clip')}, {format_bytes(found.bytes)}, of "
        f"{format_count(len(found.groups), 'video')} that other clips hold, too"
    )
    for group in found.groups[:SHOWN]:
        more = f" and {len(group) - _SHOWN:,} more" if len(group) > _SHOWN else ""
        yield f"  {', '.join(group[:_SHOWN])}{more}"
    if len(found.groups) > SHOWN:
        yield f"  and {len(found.groups) - SHOWN:,} more; --json has all"
    if found.unchecked:
        yield f"{format_count(found.unchecked, 'clip')} that look alike have no checksums to tell (--fast)"


def _epoch(epoch: EpochCost) -> dict[str, str]:
    lines = []
    for n, (name, way) in enumerate((("byte ranges", epoch.ranges), ("whole shards", epoch.shards))):
        money = "" if epoch.money is None else f", {epoch.money[n]:,.2f} at the prices given"
        taken = " (fetch='auto' takes these)" if name.endswith(epoch.cheaper) else ""
        size, requests = format_bytes(round(way.bytes)), format_count(round(way.requests), "request")
        lines.append(f"{name}: {size} in {requests}{money}{taken}")
    return {"  an epoch, from a bucket": "\n".join([f"{format_count(epoch.samples, 'sample')}, by one node", *lines])}


def _bars(histogram: Histogram, room: int) -> str:
    """A bar for each count, in at most `room` columns."""
    most = max(histogram.counts, default=0)
    pairs = list(zip(histogram.edges[:-1], histogram.edges[1:], strict=True))
    texts = [f"{low:.4g} to {high:.4g}" for low, high in pairs]
    width = max(map(len, texts), default=0)
    bar = max(1, min(_BAR, room - width - len(f"   {most:,}")))
    return "\n".join(
        f"{text:>{width}}  {'#' * -(-bar * count // most) if count else ''} {count:,}"
        for text, count in zip(texts, histogram.counts, strict=True)
    )


def _notes(notes: tuple[GpuNote, ...]) -> str:
    shown = [f"{format_count(note.clips, 'clip')} of {note.what} ({note.why})" for note in notes[:_SHOWN]]
    rest = sum(note.clips for note in notes[_SHOWN:])
    return "\n".join([*shown, f"{rest:,} others"] if rest else shown) or "none"


def _listed(counts: Counts) -> str:
    shown = [f"{name} ({count:,})" for name, count in counts[:_SHOWN]]
    rest = sum(count for _, count in counts[_SHOWN:])
    return ", ".join([*shown, f"{len(counts) - _SHOWN} others ({rest:,})"] if rest else shown)


def _spread(spread: Spread) -> str:
    return f"{spread.least:.4g} to {spread.greatest:.4g}, median {spread.median:.4g}"


def _preview(arguments: argparse.Namespace) -> int:
    sampling = sampler_of(arguments.sampling)
    transform = None if arguments.transform is None else transform_of(arguments.transform)
    from streamvid.inspection.preview.preview import preview

    dataset = open_dataset(arguments.dataset, arguments, arguments.revision)
    report = call(preview, arguments, dataset=dataset, sampling=sampling, transform=transform, progress=True)
    bad = f", {report.bad:,} of them bad" if report.bad else ""
    full = "; more would make it too large" if report.full else ""
    console().print(
        f"wrote {printable(arguments.out)} ({format_bytes(report.bytes)}): frames of {report.strips:,} "
        f"of {format_count(report.clips, 'clip')}{bad}{full}"
    )
    return 0
