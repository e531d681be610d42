"""Runs over damaged clips and from a failing bucket, killed and resized, against clean ones: is every good clip
delivered once with the right frames, every bad one reported once, and how long does it take?

    python -m tools.bench.faults [--device cuda] [--clips 2800] [--ranks 2 3 1] [--parts corpus] [--quick] [--json FILE]

The corpus is that of `tools.corpus`: of every codec a clip is damaged in each way; with the default number of clips
those are 2 % of them. Its decoders that hang and crash are stand-ins, in child processes (`isolate=True`). Ranks are
real processes, all of them killed with SIGKILL twice in the epoch and resumed on another number of them, from the last
step that all had finished. The delay of a batch is the time for which the loop waits for it; that of the first batch of
a process, with all that is opened, is stated beside it.

The bucket is the tests' own S3 server (`tests/support/faulty_s3.py`), by s3:// where s3fs is installed, else by
http://; it fails a share of all requests in eight ways, at the opening and later.

What came of each run is printed when it has ended, and again in a table. A run that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

import streamvid as sv
from streamvid.decode import cpu, isolated
from streamvid.decode.deadline import LEAST_S, Pace
from tests.support.faulty_s3 import FaultyS3, faulty_s3
from tests.support.s3_server import S3Server
from tools import corpus, stand_ins
from tools.bench.report import Check, Report, Row, arguments, finish

FAILURES: Final = ("500", "503", "empty 503", "429", "timeout", "reset", "cut", "short")
SHARES: Final = (0.05, 0.2, 0.5)
"""Shares of a bucket's requests that fail."""
BATCH: Final = 4
TOLERANCE: Final = 6
"""Levels of 255 by which a pixel may differ from run to run on a GPU, where an engine or a core may have decoded it."""
_POLL_S: Final = 0.02
_COLUMNS: Final = ("clips", "bad", "s", "x clean", "worst delay, s", "first batch, s")


@dataclass(frozen=True)
class Run:
    """An epoch over a dataset.

    Attributes:
        path: of the dataset.
        folder: for all that the run writes; made by it.
        device: of the loader.
        clips: how many it has.
        ranks: how many in each life. In all but the last they are killed.
        stand_ins: see `tools.corpus.Corpus`.
        least_s: seconds that decoding a slice may take at least.
        cached: with a cache in `folder`, of whole shards.
        environment: for the ranks.
        at_kill: is called behind each kill.
        timeout_s: of a life.
    """

    path: str
    folder: Path
    device: str
    clips: int
    ranks: tuple[int, ...] = (2,)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    least_s: float = LEAST_S
    cached: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    at_kill: Callable[[Path], object] = lambda folder: None
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class Clip:
    """A delivered clip: SHA-256 of its frames, and a few of their pixels."""

    digest: str
    pixels: bytes

    def same(self, other: Clip, device: str) -> bool:
        """Whether it has the same frames; on a GPU, nearly."""
        if device == "cpu":
            return self.digest == other.digest
        one, two = (np.frombuffer(of.pixels, dtype=np.uint8).astype(int) for of in (self, other))
        return len(one) == len(two) and int(np.abs(one - two).max(initial=0)) <= TOLERANCE


@dataclass(frozen=True)
class Outcome:
    """The clips that a run delivered.

    Attributes:
        clips: by row; in the order in which they came, so that one may be there twice.
        reported: rows in the quarantine's files, each as often as it is there.
        seconds: from the start of its first process to the end of its last, without starting Python.
        worst, first: longest delay of a batch in s, and of the first of a process.
    """

    clips: tuple[tuple[int, Clip], ...]
    reported: tuple[int, ...]
    seconds: float
    worst: float
    first: float

    def problems(self, whole: Outcome, bad: Mapping[int, str], device: str) -> list[str]:
        """The faults of the run, given the outcome of the undamaged dataset, and the bad rows of the damaged one."""
        came, told, expected = Counter(row for row, _ in self.clips), Counter(self.reported), dict(whole.clips)
        found = [f"clip {row} came {times} times" for row, times in came.items() if times > 1]
        found += [f"clip {row} did not come" for row in expected if row not in bad and not came[row]]
        found += [f"clip {row} came, and is bad: {bad[row]}" for row in came if row in bad]
        found += [f"clip {row} has other frames" for row, clip in self.clips if not clip.same(expected[row], device)]
        found += [f"clip {row} was reported {told[row]} times: {way}" for row, way in bad.items() if told[row] != 1]
        return found + [f"clip {row} was reported, and is good" for row in told if row not in bad]


def run(what: Run) -> Outcome:
    """Run it.

    Raises:
        RuntimeError: a rank failed, or a life took too long.
    """
    what.folder.mkdir(parents=True)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tools.bench.faults"])
    plain = {**asdict(replace(what, at_kill=str)), "at_kill": None}
    state: dict[str, Any] | None = None
    clips: list[tuple[int, Clip]] = []
    delays: list[list[float]] = []
    began = time.monotonic()
    for life, size in enumerate(what.ranks):
        last = life == len(what.ranks) - 1
        files = [what.folder / f"{life}-{rank}.jsonl" for rank in range(size)]
        ranks: list[BaseProcess] = []
        pauses: list[int | None] = []
        for rank, file in enumerate(files):
            # Not all at the same step.
            pause = None if last else max(1, what.clips // (BATCH * size * len(what.ranks))) + rank % 2
            task = (plain, rank, size, None if state is None else json.dumps(state), str(file), pause)
            ranks.append(processes.Process(target=run_rank, args=task, daemon=True))
            ranks[-1].start()
            pauses.append(pause)
        try:
            _wait(ranks, files, pauses, what.timeout_s)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        lines = [list(_lines(file)) for file in files]
        common = min(map(len, lines))
        delays += [[line["wait"] for line in of_rank] for of_rank in lines]
        for of_rank in lines:
            for line in of_rank[:common]:
                for row, epoch, digest, pixels in line["clips"]:
                    if epoch == 0:  # a life may begin at the end of the epoch
                        clips.append((row, Clip(digest, bytes.fromhex(pixels))))
        if common:
            states = [of_rank[common - 1]["state"] for of_rank in lines]
            if any(one != states[0] for one in states):
                raise RuntimeError(f"ranks of life {life} have unlike states")
            state = states[0]
        if not last:
            what.at_kill(what.folder)
    noted = [json.loads(line) for file in what.folder.glob("quarantine/*.jsonl") for line in file.open()]
    return Outcome(
        tuple(clips),
        tuple(line["row"] for line in noted),
        time.monotonic() - began,
        max((wait for waits in delays for wait in waits[1:]), default=0.0),
        max((waits[0] for waits in delays if waits), default=0.0),
    )


def _wait(ranks: Sequence[BaseProcess], files: Sequence[Path], pauses: Sequence[int | None], timeout_s: float) -> None:
    """Wait until each rank has ended, or waits behind as many batches as it is to make."""
    end = time.monotonic() + timeout_s
    while not all(
        rank.exitcode is not None or (pause is not None and _count(file) >= pause)
        for rank, file, pause in zip(ranks, files, pauses, strict=True)
    ):
        if time.monotonic() > end:
            raise RuntimeError(f"a life takes more than {timeout_s:.0f} s")
        time.sleep(_POLL_S)
    if failed := [rank.exitcode for rank in ranks if rank.exitcode]:
        raise RuntimeError(f"a rank ended with {failed[0]}; its error is above")


def _count(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.read_bytes().count(b"\n")
    return 0


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The finished lines of a rank that may have been killed."""
    for line in file.read_bytes().split(b"\n")[:-1] if file.exists() else ():
        yield json.loads(line)


def run_rank(what: dict[str, Any], rank: int, size: int, state: str | None, file: str, pause: int | None) -> None:
    """One rank of a life, in its process: writes a line for each batch. Behind `pause` batches it waits to be killed,
    while its threads go on."""
    os.environ.update(what["environment"])
    os.environ[stand_ins.STAND_INS] = json.dumps(what["stand_ins"])
    isolated._decode_into = stand_ins.decode_into  # type: ignore[assignment]
    for module in (cpu, isolated):
        module.Pace = partial(Pace, least_s=what["least_s"])  # type: ignore[attr-defined]
    cache = {"cache_dir": what["folder"] / "cache", "fetch": "shards"} if what["cached"] else {}
    with (
        open(file, "a") as out,
        sv.StreamLoader(
            what["path"], batch_size=BATCH, sampling=sv.Window(corpus.FRAMES), device=what["device"], seed=5,
            num_threads=2, isolate=True, rank=rank, world_size=size, quarantine=what["folder"] / "quarantine",
            max_errors=1_000_000, **cache,
        ) as loader,
    ):  # fmt: skip
        if state is not None:
            loader.load_state_dict(json.loads(state))
        batches = iter(loader)
        for done in itertools.count():
            if done == pause:
                time.sleep(what["timeout_s"])
            began = time.monotonic()
            if (batch := next(batches, None)) is None:
                return
            wait = time.monotonic() - began
            clips = []
            for n in batch["valid"].nonzero().flatten().tolist():
                frames = batch["video"][n].cpu().numpy()
                pixels = frames[::4, ::8, ::8].tobytes().hex() if what["device"] != "cpu" else ""
                digest = hashlib.sha256(frames.tobytes()).hexdigest()
                clips.append([int(batch["clip"][n]), int(batch["epoch"][n]), digest, pixels])
            out.write(json.dumps({"wait": wait, "clips": clips, "state": loader.state_dict()}) + "\n")
            out.flush()


@contextlib.contextmanager
def bucket(folder: Path) -> Iterator[tuple[FaultyS3, str, dict[str, str]]]:
    """A server of a dataset: itself, the dataset's URL, and the environment variables that reach it."""
    with faulty_s3() as site:
        url = site.add_folder(folder, "bucket/set")
        if find_spec("s3fs") is None:
            url = f"{site.endpoint}/bucket/set"
        yield site, url, S3Server(site.endpoint).environment()


def fail(site: FaultyS3, share: float, seed: int = 0) -> None:
    """Let a bucket fail so many of all requests."""
    dice = random.Random(seed)
    site.fault = lambda *_: dice.choice(FAILURES) if dice.random() < share else None


def spoil(folder: Path) -> None:
    """Flip a bit in the middle of each file of a run's cache, as a program does that writes there."""
    for path in (folder / "cache").iterdir():
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-len(byte), os.SEEK_CUR)
            file.write(bytes(one ^ 1 for one in byte))


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--clips", type=int, help="of the corpus; default: as many as make the damaged ones 2 %%")
    parser.add_argument("--ranks", type=int, nargs="+", default=(2, 3, 1), help="in the lives of the epoch")
    parser.add_argument("--codecs", nargs="+", choices=corpus.CODECS, default=tuple(corpus.CODECS))
    parser.add_argument("--parts", nargs="+", choices=("corpus", "bucket"), default=("corpus", "bucket"))
    options = parser.parse_args(argv)
    clips = options.clips or (4 if options.quick else 50) * damaged_by(tuple(corpus.WAYS), options.codecs)
    with tempfile.TemporaryDirectory(prefix="sv-faults-") as temporary:
        report = measure(Path(temporary), clips, options)
    return finish(report, options)


def measure(folder: Path, clips: int, options: argparse.Namespace) -> Report:
    """Make the corpus, and run all."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tools.bench.faults", "torch"])
    first = processes.Process(target=os.getpid)  # the server imports both before it
    first.start()
    first.join()
    report = Report("faults", [], [], [])
    if "corpus" in options.parts:
        _corpus(folder / "corpus", clips, options, report)
    if "bucket" in options.parts:
        if find_spec("s3fs") is None and find_spec("aiohttp") is None:
            cast(list[str], report.notes).append("neither s3fs nor aiohttp is installed: no bucket")
        else:
            _bucket(folder / "bucket", clips, options, report)
    return report


def _measured(
    name: str, what: Run, report: Report, whole: Outcome | None, clean: Outcome | None, bad: Mapping[int, str]
) -> Outcome | None:
    """The outcome of a run, which is added to the report; None if it failed.

    Args:
        whole: what came of the undamaged dataset; default: this run.
        clean: whose time is compared; default: this one's.
        bad: the damaged clips.
    """
    rows, checks, notes = cast(tuple[list[Row], list[Check], list[str]], (report.rows, report.checks, report.notes))
    print(f"{name} …", file=sys.stderr, flush=True)
    row: dict[str, str | int | float] = {"run": name}
    found: Outcome | None = None
    try:
        found = run(what)
    except RuntimeError as error:
        problems = [str(error)]
        rows.append(row | dict.fromkeys(_COLUMNS, math.nan))
    else:
        problems = found.problems(whole or found, bad, what.device)
        numbers = (
            len(found.clips), len(found.reported), found.seconds, found.seconds / (clean or found).seconds,
            found.worst, found.first,
        )  # fmt: skip
        rows.append(row | dict(zip(_COLUMNS, numbers, strict=True)))
        if not what.environment:  # of requests that fail again and again, nothing is promised
            checks.append(Check.at_most(f"{name}: worst delay of a batch, s", found.worst, 10 + LEAST_S))
    checks.append(Check.at_most(f"{name}: what is not as it should be", len(problems), 0))
    notes.extend(f"{name}: {problem}" for problem in problems[:20])
    cells = ", ".join(f"{column} {cell:.5g}" for column, cell in list(rows[-1].items())[1:])
    print(f"{name}: {'; '.join(problems[:20]) or 'all as it should be'}; {cells}", flush=True)
    return found


def _corpus(folder: Path, clips: int, options: argparse.Namespace, report: Report) -> None:
    """Runs over files of this machine, with damage and without."""
    folder.mkdir()
    made = corpus.make(folder, clips, codecs=options.codecs)
    plain = Run(str(made.whole), folder / "clean", options.device, clips)
    hurt = replace(plain, path=str(made.damaged), stand_ins=made.stand_ins)
    names = " → ".join(map(str, options.ranks))
    if (whole := _measured("clean, 2 ranks", plain, report, None, None, {})) is None:
        return
    _measured("damaged, 2 ranks", replace(hurt, folder=folder / "hurt"), report, whole, whole, made.bad)
    killed = replace(plain, folder=folder / "killed", ranks=tuple(options.ranks))
    clean = _measured(f"clean, killed and resized, {names} ranks", killed, report, whole, whole, {})
    killed = replace(hurt, folder=folder / "hurt-killed", ranks=tuple(options.ranks))
    _measured(f"damaged, killed and resized, {names} ranks", killed, report, whole, clean, made.bad)


def _bucket(folder: Path, clips: int, options: argparse.Namespace, report: Report) -> None:
    """Runs over a bucket that fails requests."""
    folder.mkdir()
    ways = [way for way in corpus.WAYS if way not in corpus.IN_PLACE]
    fewer = max(clips // 4, 2 * damaged_by(ways, options.codecs))
    stored = corpus.make(folder, fewer, ways=ways, codecs=options.codecs)
    with bucket(stored.whole) as (site, url, environment):
        remote = Run(url, folder / "all", options.device, fewer, cached=True, environment=environment)
        if (whole := _measured("bucket", remote, report, None, None, {})) is None:
            return
        for share in SHARES:
            fail(site, share)
            failing = replace(remote, folder=folder / str(share))
            _measured(f"bucket, {share:.0%} of requests fail", failing, report, whole, whole, {})
    with bucket(stored.damaged) as (site, url, environment):
        fail(site, 0.2)
        worst = replace(
            remote, path=url, folder=folder / "worst", environment=environment, ranks=tuple(options.ranks),
            at_kill=spoil, stand_ins=stored.stand_ins,
        )  # fmt: skip
        names = " → ".join(map(str, options.ranks))
        name = f"bucket, 20% fail, damaged, cache altered, killed and resized, {names} ranks"
        _measured(name, worst, report, whole, whole, stored.bad)


def damaged_by(ways: Sequence[str], codecs: Sequence[str]) -> int:
    """How many clips of a corpus are damaged."""
    return sum(1 if way in corpus.STAND_INS else len(codecs) for way in ways)


if __name__ == "__main__":
    sys.exit(main())
