"""Streaming from a bucket far away: byte ranges, whole shards, local files, and other libraries' readers.

    python -m tools.bench.object_store [--quick] [--json FILE] [--clips 1600 32] [--latency 0 20 50 200] [--rate 100 50]
                                       [--ways ranges shards …] [--peers PYTHON]

It starts a Ceph RGW and, in front of it, a proxy that adds the latency and limits each connection
(tools/bench/slow_link.c, compiled with cc). Two workloads: dense, 16 frames at 8 frames per second of clips of 10 s and
1.4 MB, in batches of 8; sparse, 16 frames a second apart out of videos of 300 s and 41 MB, in batches of 2. Each way
runs in a process of its own, with empty caches, once through all clips or until `--limit` seconds are over, to the
slice; at 50 ms once more to the tensor, for three times as long. Of sparse videos, which take `ranges` less than a
second, it reads eight windows each.

And ranges once more for a loop that takes 0.8 of the clips that come, over a link on which no requests stall, or 1 % of
them for 10 s: P50 and P99 are then of a step with its batch, of eight windows of each clip without a cache; and once
more by a loop that has frozen what is imported (`gc.freeze`), as docs/training.md advises. Requests and bytes are those
that the proxy sees. What is not installed is left out; `--peers` names the Python of an environment that has others'
packages, and this one's.

Others' readers fetch whole samples: `webdataset` by a pipe of curl, `litdata` and `mosaicml` from their own formats, of
some of the same files, `dali` by its reader of files; `lance` takes the bytes of the same packets out of a column of
blobs.
`objects` is our own client that fetches whole videos.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from streamvid.dataset.manifest import FILE_NAME
from streamvid.dataset.revisions import read_manifest, with_etags
from streamvid.storage import filesystem
from tests.support.s3_server import S3Server
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.store_data import BATCH, SAMPLING, make
from tools.bench.store_server import BUCKET, ROOT, ceph, compile_link, slow_link
from tools.bench.store_ways import PEERS, WAYS, Task

RATE: Final = 100.0
LATENCY: Final = 50.0
"""The condition of most checks: MB/s of a connection, and ms."""
HOARDERS: Final = ("litdata", "mosaicml")
"""Ways that fetch most clips before the first batch, so that their speed after it says nothing about the link."""
STALLS: Final = (0.0, 0.01)
"""Shares of requests that stall where a loop takes its time for a step."""
PACE: Final = 0.8
"""How fast that takes clips, as a share of the rate at which they come."""


@dataclass(frozen=True)
class Condition:
    """One row's circumstances; with `stall`, of a loop that takes its time, and that share of requests stall; with
    `freeze`, its garbage collector leaves alone what there is after the first batch."""

    workload: str
    latency: float
    rate: float
    decode: bool
    stall: float | None = None
    freeze: bool = False


Found = Mapping[tuple[Condition, str], Mapping[str, float] | str]


def conditions(options: argparse.Namespace) -> list[Condition]:
    """The link as given to the slice, at the other rates with `LATENCY` alone; that and `RATE` to the tensor, too."""
    rates = options.rate
    links: list[tuple[float, float, bool]] = [(latency, rates[0], False) for latency in options.latency]
    links += [(LATENCY, rate, False) for rate in rates[1:]]
    if not options.no_decode:
        links.append((LATENCY, rates[0], True))
    found = [Condition(workload, *link) for workload in options.workloads for link in links]
    if LATENCY in options.latency and "dense" in options.workloads:
        found += [
            Condition("dense", LATENCY, rates[0], False, stall, freeze) for freeze in (False, True) for stall in STALLS
        ]
    return found


def pace_of(condition: Condition, found: Found) -> float:
    """Seconds of a step of a loop that takes clips at `PACE` of the rate without one; else 0."""
    free = found.get((replace(condition, stall=None, freeze=False), "ranges"))
    if condition.stall is None or free is None or isinstance(free, str):
        return 0.0
    return BATCH[condition.workload] / PACE / free["steady"]


def run(command: Sequence[str], environment: Mapping[str, str], limit: float) -> str:
    """The last line that a child prints, or "!" and the last line of its error."""
    more = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **environment}
    try:
        done = subprocess.run(
            command, env=os.environ | more, capture_output=True, text=True, check=False, timeout=limit, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return f"!more than {limit:.0f} s"
    lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
    return ("!" if done.returncode else "") + (lines or [""])[-1][:1000]


def measure(task: Task, python: str, environment: Mapping[str, str]) -> Mapping[str, float] | str:
    """The figures of a way, or the last line of its error."""
    text = run([python, "-m", "tools.bench.store_ways", json.dumps(asdict(task))], environment, 5 * task.limit + 60)
    if text.startswith("!") or not text:
        return text[1:150] or "it says nothing"
    figures: dict[str, float] = json.loads(text)
    return figures


def row_of(condition: Condition, way: str, found: Mapping[str, float] | str) -> Row:
    """A row of the table."""
    head: dict[str, str | int | float] = {
        "workload": condition.workload
        + (" decoded" if condition.decode else "")
        + ("" if condition.stall is None else f" paced, {round(100 * condition.stall)} % stall")
        + ", gc.freeze" * condition.freeze,
        "ms": f"{condition.latency:g}",
        "MB/s each": f"{condition.rate:g}",
        "way": way,
    }
    names = ("clips/s", "after first", "MB/s", "first s", "KB/clip", "req/clip", "P50 s", "P99 s", "MiB", "CPU s")
    if isinstance(found, str):
        return {**head, **dict.fromkeys(names, "-"), "CPU s": found[:60]}
    clips, seconds = found["clips"], found["seconds"]
    values = (
        clips / seconds, found["steady"], found["sent"] / seconds / 1e6, found["first"], found["sent"] / clips / 1e3,
        found["requests"] / clips, found["p50"], found["p99"], found["memory"], found["cpu"],
    )  # fmt: skip
    return {**head, **{name: float(f"{value:.3g}") for name, value in zip(names, values, strict=True)}}


def checks_of(found: Found) -> list[Check]:
    """Checks of the promises of the issue, as far as they were measured."""

    def figure(workload: str, way: str, name: str, latency: float = LATENCY) -> float | None:
        one = found.get((Condition(workload, latency, RATE, False), way))
        if one is None or isinstance(one, str):
            return None
        return one["clips"] / one["seconds"] if name == "overall" else one[name]

    checks: list[Check] = []

    def ratio(text: str, top: float | None, bottom: float | None, bar: float, *, most: bool = False) -> None:
        if top is not None and bottom:
            checks.append((Check.at_most if most else Check.at_least)(text, top / bottom, bar))

    whole_objects = figure("dense", "objects", "steady")
    ratio(
        "dense: clips/s, ranges to whole objects, same client", figure("dense", "ranges", "steady"), whole_objects, 0.9
    )
    for peer in PEERS:
        name = "overall" if peer in HOARDERS else "steady"
        for workload, bar in (("dense", 5.0 if peer == "dali" else 1.5), ("sparse", 3.0)):
            own, others = figure(workload, "ranges", name), figure(workload, peer, name)
            ratio(
                f"{workload}: clips/s, ranges to {peer}" + ", opening included" * (name != "steady"), own, others, bar
            )
    for condition, paced in [(key, one) for (key, _), one in found.items() if key.stall is not None]:
        if not isinstance(paced, str):
            text = f"{row_of(condition, 'ranges', paced)['workload']}: P99 of a step with its batch to the median"
            ratio(text, paced["p99"], paced["p50"], 1.5, most=True)
    sent, whole = (figure("sparse", way, "sent") for way in ("ranges", "shards"))
    clips = [figure("sparse", way, "clips") for way in ("ranges", "shards")]
    if sent and whole and clips[0] and clips[1]:
        ratio("sparse: bytes, ranges to whole shards", sent / clips[0], whole / clips[1], 0.1, most=True)
    for workload in SAMPLING:
        near, far = (figure(workload, "ranges", "steady", latency) for latency in (0.0, 200.0))
        ratio(f"{workload}: clips/s after the first batch, 200 ms to 0 ms", far, near, 0.9)
    return checks


def keep_etags(url: str) -> None:
    """Let an uploaded dataset name its objects' ETags, as one that was packed there does."""
    filesystem.write_bytes(f"{url}/{FILE_NAME}", with_etags(url, read_manifest(url)).to_json())


def main() -> int:
    """See the module."""
    parser = arguments(__doc__)
    parser.add_argument("--clips", type=int, nargs=2, metavar="N", help="dense and sparse ones (1600 32)")
    parser.add_argument("--latency", type=float, nargs="+", metavar="MS", help="of a request (0 20 50 200)")
    parser.add_argument("--rate", type=float, nargs="+", metavar="MB/S", help="of a connection (100 50)")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--workloads", nargs="+", default=list(SAMPLING), choices=SAMPLING)
    parser.add_argument("--no-decode", action="store_true", help="measure to the slice alone")
    parser.add_argument("--limit", type=float, help="seconds of a way (10)")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="which has the others' packages")
    parser.add_argument("--port", type=int, default=17490)
    options = parser.parse_args()
    quick = options.quick
    options.clips = options.clips or ((256, 12) if quick else (1600, 32))
    options.latency = options.latency or ([LATENCY] if quick else [0.0, 20.0, LATENCY, 200.0])
    options.rate = options.rate or ([RATE] if quick else [RATE, 50.0])
    options.limit = options.limit or (3.0 if quick else 10.0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    found: dict[tuple[Condition, str], Mapping[str, float] | str] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sv-store-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        program = compile_link(folder)
        server = stack.enter_context(ceph(folder / "ceph", options.port))
        fs = server.filesystem()
        os.environ.update(server.environment())
        unusable: dict[tuple[str, str], str] = {}
        for workload, clips in zip(SAMPLING, options.clips, strict=True):
            if workload in options.workloads:
                made = make(folder, workload, clips)
                for way in options.ways:
                    if way in PEERS:
                        command = [options.peers, "-m", "tools.bench.store_ways", "--convert", str(folder)]
                        said = run([*command, workload, way], {}, 300.0)
                        unusable |= {(workload, way): said[1:]} if said.startswith("!") else {}
                for part in made.iterdir():
                    fs.put(str(part), f"{BUCKET}/{workload}/{part.name}", recursive=True)
                keep_etags(f"s3://{BUCKET}/{workload}/set")
        for condition in conditions(options):
            for way in options.ways:
                left_out = ("objects", "lance") if condition.decode else ()
                if way in left_out or (condition.stall is not None and way != "ranges"):
                    continue
                port = options.port + 1
                link = (condition.latency, condition.rate, condition.stall or 0.0)
                with slow_link(program, port, options.port, *link) as counts:
                    limit = options.limit * (3 if condition.decode or condition.stall is not None else 1)
                    pace = pace_of(condition, found)
                    task = Task(
                        way, condition.workload, port, str(folder), condition.decode, limit, pace, condition.freeze
                    )
                    python = options.peers if way in PEERS else sys.executable
                    one = unusable.get((condition.workload, way)) or measure(
                        task, python, S3Server(f"http://127.0.0.1:{port}").environment()
                    )
                    _, requests, sent = counts()
                if not isinstance(one, str):
                    one = {**one, "requests": requests, "sent": sent}
                found[condition, way] = one
                print(*row_of(condition, way, one).values(), file=sys.stderr, flush=True)
    rows = [row_of(condition, way, one) for (condition, way), one in found.items()]
    notes = ["clips/s includes opening; MiB is of all processes of a way; requests and bytes are those of the proxy."]
    details = [{**asdict(condition), "way": way, "found": one} for (condition, way), one in found.items()]
    return finish(Report("object store", rows, checks_of(found), notes, details), options)


if __name__ == "__main__":
    sys.exit(main())
