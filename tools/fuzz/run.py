"""Fuzz readers of others' bytes for some time. Each works in a process of its own, which is watched.

Allowed are success and the errors that the target names. A finding is any other exception, a call of more than 10 s, a
crash, or more than 1 GiB of memory: its input is kept, and named on the last lines. Inputs that end in a way that none
before ended become seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import random
import re
import resource
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz.mutate import mutated, mutated_json
from tools.fuzz.targets import TARGETS, Target
from tools.processes import cpu_seconds, peak_bytes

CALL_S = 10.0
LIMIT = 1 << 30
_ADDRESS_SPACE = 8 << 30
_KEPT_SEEDS = 300
_PATIENCE = 12


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: all, one after another")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="a folder for the inputs of findings")
    parser.add_argument("--replay", type=Path, help="read this input instead, in this process")
    options = parser.parse_args(argv)
    names = options.target or list(TARGETS)
    if options.replay:
        TARGETS[names[0]].read(options.replay.read_bytes())
        return 0
    found = []
    for name in names:
        found += run(name, options.seconds, options.seed, options.keep)
    for line in found:
        print(line)
    return int(bool(found))


def run(name: str, seconds: float, seed: int, keep: Path) -> list[str]:
    """Fuzz one target; returns a line for each finding."""
    end, found, calls, restarts = time.monotonic() + seconds, [], 0, 0
    known: set[str] = set()
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            current = Path(folder, "input")
            state = multiprocessing.get_context("spawn").Array("q", 2)  # calls, and whether the seeds are made
            args = (name, f"{seed}/{restarts}", str(current), state, end, sorted(known))
            child = multiprocessing.get_context("spawn").Process(target=_work, args=args)
            child.start()
            assert child.pid is not None
            what, before, since, used = "", -1, time.monotonic(), 0.0
            while child.is_alive():
                child.join(0.2)
                if state[0] != before:
                    before, since, used = state[0], time.monotonic(), cpu_seconds(child.pid)
                # By the processor's time, too: the machine may be busy.
                elif state[1] and (
                    cpu_seconds(child.pid) - used > CALL_S or time.monotonic() - since > _PATIENCE * CALL_S
                ):
                    what = f"takes more than {CALL_S:.0f} s"
                if what or (peak_bytes(child.pid) > LIMIT and (what := "takes more than 1 GiB")):
                    child.kill()
            child.join()
            calls += state[0]
            restarts += 1
            note = Path(folder, "error")
            what = what or (
                note.read_text() if note.exists() else f"ends with {child.exitcode}" if child.exitcode else ""
            )
            if what:
                known.add(what.partition("\n")[0])
                data = current.read_bytes() if current.exists() else b""
                keep.mkdir(parents=True, exist_ok=True)
                path = keep / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
                path.write_bytes(data)
                found.append(f"{name}: {what.partition(chr(10))[0]} ({path}, {len(data)} bytes)")
                print(f"{name}: {what}\n  {path}", flush=True)
                if restarts > 50:
                    break
    print(f"{name}: {calls:,} inputs in {seconds:.0f} s, {len(found)} findings", flush=True)
    return found


def _work(name: str, seed: str, current: str, state: Sequence[int], end: float, known: Sequence[str]) -> None:
    """The process that reads."""
    target, draw = TARGETS[name], random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        seeds = list(target.seeds(Path(folder)))
        with contextlib.suppress(*target.allowed):
            target.read(seeds[0])  # imports what it needs
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seen, first = set(), len(seeds)
    state[1] = 1  # type: ignore[index]
    while time.monotonic() < end:
        data = _mutant(target, draw, seeds)
        Path(current).write_bytes(data)
        try:
            target.read(data)
            outcome = "accepted"
        except target.allowed as error:
            outcome = f"{type(error).__name__} {re.sub(r'[0-9]+|/[^ ]*', '#', str(error))[:60]}"
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)
            ours = [f"{Path(one.filename).name}:{one.lineno}" for one in where if "streamvid/" in one.filename] or ["?"]
            what = f"{type(error).__name__} in {ours[-1]}"
            if what not in known:
                Path(current).with_name("error").write_text(f"{what}\n{traceback.format_exc()[-3000:]}")
                return
            outcome = what
        if outcome not in seen and len(seeds) < _KEPT_SEEDS and len(data) < 1 << 18:
            seen.add(outcome)
            seeds.append(data)
        if len(seeds) > first and not draw.randrange(1000):
            seeds[first:] = draw.sample(seeds[first:], len(seeds) - first)
        state[0] += 1  # type: ignore[index]


def _mutant(target: Target, draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    if target.is_json and draw.randrange(4):
        try:
            return json.dumps(mutated_json(draw, json.loads(draw.choice(seeds)))).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            pass
    return mutated(draw, seeds, target.tokens)
