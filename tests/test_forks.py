"""A forked child leaves its parent's loaders alone: whatever it does with them, whatever locks are held."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import streamvid as sv
from streamvid.forks import HomeProcess, in_children
from tests.support.packed import pack_recipes
from tools.clips import Recipe

KINDS = ("stream", "stream, DALI", "engine, DALI", "gpu", "gpu, workers")
ACTS = ("next", "iter", "close the iterator", "drop", "close the loader", "end")

# Of each kind a loader in the middle of an epoch, and of each act a child, forked while this process holds all locks
# that threads of the loader may hold. The children's exit codes: 7 is well, -14 is one that waits for ever.
SCRIPT = """
import concurrent.futures, contextlib, gc, json, os, queue, signal, sys, threading
import streamvid as sv
from streamvid.loader.quarantine import Quarantine
from streamvid.storage.lru_cache import LruCache

KINDS, ACTS, FOLDER = json.loads(sys.argv[1])
LOCKS = {
    concurrent.futures.ThreadPoolExecutor: lambda pool: pool._shutdown_lock,
    queue.Queue: lambda one: one.mutex,
    LruCache: lambda one: one._lock,
    Quarantine: lambda one: one._lock,
}

def make(kind):
    transform = sv.Transform(resize=40, crop=32, rotate=5 if kind == "stream, DALI" else 0)
    options = dict(sampling=sv.Window(4), transform=transform)
    if kind.startswith("gpu"):
        workers = dict(num_workers=1, multiprocessing_context="fork") if "workers" in kind else {}
        return sv.GpuDataLoader(sv.ClipDataset(FOLDER, **options), batch_size=2, device="cpu", **workers)
    engine = "dali" if "engine" in kind else "default"
    return sv.StreamLoader(FOLDER, batch_size=2, device="cpu", engine=engine, **options)

def refused(iterator):
    try:
        next(iterator)
    except sv.InputError as error:
        return "forked" in str(error)

def act(what):
    global loader, iterator
    if what == "next":
        return refused(iterator)
    if what == "iter":
        return refused(iter(loader))
    if what == "close the iterator":
        iterator.close()
    elif what == "drop":
        del loader, iterator
        gc.collect()
    elif what == "close the loader":
        loader.close()
    return True

for kind in KINDS:
    with make(kind) as loader:
        iterator = iter(loader)
        next(iterator)
        codes = {}
        for what in ACTS:
            if (kind, what) == ("gpu, workers", "end"):
                continue  # multiprocessing itself ends its parent's workers there
            with contextlib.ExitStack() as held:
                for one in gc.get_objects():
                    if type(one) in LOCKS:
                        held.enter_context(LOCKS[type(one)](one))
                child = os.fork()
                if not child:
                    held.pop_all()
            if not child:
                signal.alarm(60)
                code = 7 if act(what) else 1
                if what == "end":
                    sys.exit(7)
                os._exit(code)
            codes[what] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        next(iterator)  # which goes on here
        iterator.close()
    print(json.dumps([kind, codes]), flush=True)
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VP9, which DALI decodes on a CPU."""
    recipes = {f"{n}": Recipe(codec="vp9", width=64, height=64, frames=6, b_frames=0, seed=n) for n in range(12)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("forks"), options=sv.PackOptions(compatible_with="any"))


def test_nothing_that_a_child_does_waits_or_touches_its_parent(dataset: Path, forked_python: Path) -> None:
    script = [str(forked_python), "-c", SCRIPT, json.dumps([KINDS, ACTS, str(dataset)])]
    ran = subprocess.run(script, capture_output=True, text=True, check=False)
    codes = dict(json.loads(line) for line in ran.stdout.splitlines())
    bad = [(kind, act, code) for kind, acts in codes.items() for act, code in acts.items() if code != 7]
    assert not bad, ran.stderr[-2000:]
    assert (ran.returncode, tuple(codes)) == (0, KINDS), ran.stderr[-2000:]


def test_a_child_abandons_what_exists_when_it_is_forked() -> None:
    class Pipeline:
        def __del__(self) -> None:
            freed.append(os.getpid())

    freed: list[int] = []
    abandoned: list[object] = []
    kept, gone = in_children(Pipeline()), in_children(Pipeline(), abandoned.append)
    one = in_children(Pipeline(), abandoned.append)
    del gone
    assert freed == [os.getpid()]
    child = os.fork()
    if not child:
        del kept
        os._exit(7 if abandoned == [one] and len(freed) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not abandoned
    del kept
    assert len(freed) == 2


def test_a_home_process_is_the_first_that_enters_it() -> None:
    home, closed, fresh = HomeProcess(), HomeProcess(), HomeProcess()
    assert home.enter() == home.enter() == closed.enter() == os.getpid()
    closed.leave()
    child = os.fork()
    if not child:
        here = closed.enter() == fresh.enter() == os.getpid()
        try:
            home.enter()
        except sv.InputError as error:
            os._exit(7 if here and not home.here and "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert home.here
