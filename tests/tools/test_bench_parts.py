"""Benchmarks that run parts in processes of their own keep what came before one dies, and cut short fairly."""

from __future__ import annotations

import dataclasses
import itertools
import json
import runpy
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from streamvid.video.remux import store_clip
from tests.support.clock import Clock
from tools import dali_faults
from tools.bench import __main__ as bench_main
from tools.bench import access_report, baselines, decode, decode_cases, decode_rows, random_access, train_step
from tools.bench.decode_cases import FORMATS, Case, clip_path, make_clips
from tools.bench.host_times import HostTimes
from tools.bench.isolated import PartError, run_isolated
from tools.bench.timing import (
    SMALL,
    FrameNumbers,
    Timing,
    Way,
    middle_clips,
    random_clips,
    shows,
    time_way,
)

FAULTS = sorted(Path(dali_faults.__file__).parent.glob("[!_]*.py"))


def part(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that runs this code; its name."""
    (folder / "part_of_a_test.py").write_text("import os, sys, time\nfrom tools.bench.isolated import emit\n" + code)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[2]}")
    return "part_of_a_test"


def test_results_come_as_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = part(tmp_path, "print('noise')\nfor n in range(3): emit({'n': n, 'of': sys.argv[1]})", monkeypatch)
    assert list(run_isolated(name, ["x"], seconds=30)) == [{"n": n, "of": "x"} for n in range(3)]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os._exit(7)", "ended with 7"),
        ("raise ValueError('so')", "ValueError: so"),
        ("time.sleep(60)", "more than 10 s"),
    ],
)
def test_a_part_that_dies_or_hangs_leaves_its_results(
    end: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = part(tmp_path, f"emit({{'n': 1}})\n{end}", monkeypatch)
    started = time.monotonic()
    coming = run_isolated(name, [], seconds=10)
    assert next(coming) == {"n": 1}
    with pytest.raises(PartError, match=words):
        next(coming)
    assert time.monotonic() - started < 60


def test_random_clips_lie_in_the_video() -> None:
    for length in (20, 60):
        wanted = random_clips(length, 100, seed=1)
        assert all(0 <= clip[0] < clip[-1] < length * 60 for clip in wanted)
        assert all(b - a == 60 for clip in wanted for a, b in itertools.pairwise(clip))
        (middle,) = middle_clips(length, 1)
        assert middle[0] == pytest.approx(sum(clip[0] for clip in random_clips(length, 10**4, 1)) / 10**4, rel=0.05)


def test_a_slow_way_is_asked_for_few_and_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, clock = list[int](), Clock()
    monkeypatch.setattr("tools.bench.timing.time", SimpleNamespace(perf_counter=lambda: clock.now))

    def way(seconds: float) -> Way:
        """Four clips at once, each of which takes so long."""

        def run(wanted: FrameNumbers) -> None:
            asked.append(len(wanted))
            clock.sleep(seconds * len(wanted))

        return Way(run, few=4)

    timing = time_way(lambda: way(0.02), Timing("slow", "cpu", 60, 128), cut=0.1)
    assert asked == [1, 4]
    assert (timing.clips, timing.wanted, timing.is_cut) == (4, 128, True)
    assert timing.median == pytest.approx(128 * 0.02)
    asked.clear()
    timing = time_way(lambda: way(0.001), Timing("quick", "cpu", 60, 16), cut=5)
    assert asked == [1, 4, 16]
    assert timing.clips == 16
    assert not timing.is_cut


@pytest.mark.parametrize("channels", [2, 4])
def test_frames_beside_the_wanted_ones_are_told(channels: int) -> None:
    reference = np.random.default_rng(1).integers(0, 256, (90, SMALL, SMALL), dtype=np.uint8)
    numbers = [3, 63, 150]
    clip = np.stack([reference[n % 90].repeat(4, axis=0).repeat(4, axis=1) for n in numbers])
    found = np.stack([clip // 2 + 20] * 3, axis=channels - 1)[None]
    assert shows(found, numbers, reference)
    assert shows([torch.from_numpy(found)], numbers, reference)
    for wrong in ([4, 63, 150], [3, 63, 149]):
        assert not shows(found, wrong, reference)


def test_a_way_that_fails_says_why() -> None:
    def fails() -> Way:
        raise RuntimeError("needs a GPU")

    assert time_way(fails, Timing("x", "cpu", 60, 4), cut=1).error == "RuntimeError: needs a GPU"


def found(**seconds: tuple[float, ...]) -> access_report.Found:
    """Timings of ways for videos of 60, 300 and 3000 seconds on a GPU."""
    names = {"ours": access_report.STREAM_LOADER, "nvc": access_report.NVC, "whole": access_report.WHOLE}
    return {
        (names[key], length): Timing(names[key], "cuda", length, 128, (taken,), 128)
        for key, values in seconds.items()
        for length, taken in zip((60, 300, 3000), values, strict=False)
    }


def test_all_bars_of_random_access_are_checked() -> None:
    good = access_report.checks(found(ours=(1, 1, 1.1), nvc=(2, 2, 2.3), whole=(4, 21, 120)))
    assert len(good) == 9 + 1 + 3 + 3
    assert all(check.passed for check in good)
    for bad in (
        found(ours=(1, 1, 1.3)),
        found(ours=(1,), nvc=(1.9,)),
        found(ours=(1,), whole=(2.9,)),
        found(ours=(1, 1), whole=(4, 19)),
        found(ours=(1, 1, 1), whole=(4, 21, 99)),
    ):
        assert not all(check.passed for check in access_report.checks(bad))


def test_ways_on_a_cpu_are_held_against_the_best_baseline() -> None:
    names = (access_report.STREAM_LOADER, *access_report.ON_CPU)
    timings: access_report.Found = {(name, 60): Timing(name, "cpu", 60, 128, (2.0,), 128) for name in names}
    *_, check = access_report.checks(timings)
    assert (check.value, check.bar) == (1.0, 2.0)
    assert set(access_report.ON_CPU) <= set(baselines.BASELINES)
    assert access_report.WHOLE_VP9 in random_access.names("cpu", "h264")
    assert access_report.WHOLE_VP9 not in random_access.names("cuda", "h264")


def test_what_was_cut_is_marked_and_what_was_measured_is_kept() -> None:
    timings = found(ours=(1, 1, 1), whole=(4,))
    timings[access_report.WHOLE, 300] = Timing(access_report.WHOLE, "cuda", 300, 128, (80.0,), 7)
    rows = access_report.table(timings)
    assert [row["300 s"] for row in rows] == ["1.00", "~80.00"]
    assert rows[1]["3000 s"] == ""
    mine = timings[access_report.STREAM_LOADER, 60]
    assert random_access.rounds_needed(mine, mine.name, 3) == 2
    assert random_access.rounds_needed(timings[access_report.WHOLE, 300], access_report.WHOLE, 3) == 0
    more = mine.with_more(Timing(mine.name, "cuda", 60, 128, (3.0,), 128))
    assert more.seconds == (1, 3.0)
    assert more.with_more(Timing(mine.name, "cuda", 60, 128, error="died")) == more


def test_the_rows_of_decoding() -> None:
    cases = decode.all_cases()
    for kind in list(FORMATS)[:5]:
        every = {(batch, cores) for batch in (16, 64, 256) for cores in (0, 4)}
        assert {(case.batch, case.cores) for case in cases if (case.kind, case.gop) == (kind, 15)} == every
    assert {case.kind for case in cases} == set(FORMATS)
    assert len({case.name for case in cases}) == len(cases)
    assert {case.name for case in decode.all_cases(quick=True)} < {case.name for case in cases}


def decoded(**changes: Any) -> dict[str, Any]:
    """A row that reaches all bars but for the changes."""
    about = dataclasses.asdict(Case("H.264 720p", 15, 1, 16, loop=True)) | {"error": ""}
    return about | {
        "pynv": 9000.0, "native": 9500.0, "decoded": 9100.0, "delivered": 6600.0, "memory": 1.1, "same": True,
        "loop_s": 0.0358, "decoding_s": 0.035, "loop_same": True, "stock_rate": 1800.0, "stock_same": True,
    } | changes  # fmt: skip


def test_bars_of_decoding_are_checked() -> None:
    assert all(check.passed for check in decode.checks([decoded()]))
    bad: list[dict[str, Any]] = [
        {"pynv": 9600.0}, {"native": 9600.0}, {"one_size": 9600.0}, {"loop_s": 0.0362}, {"same": False},
        {"loop_same": False}, {"stock_same": False}, {"error": "died"},
    ]  # fmt: skip
    for change in bad:
        assert sum(not check.passed for check in decode.checks([decoded(**change)])) == 1
    found = [decoded(**change) for change in bad]
    few = {"error": "", "pynv": 1.0, "native": 0.0, "decoded": 1.0, "delivered": 1.0, "memory": 0.0, "same": True}
    assert decode.checks([decoded(error=f"{decode_rows.TOO_LARGE} 99 GB")]) == []
    rows = decode.table([*found, dataclasses.asdict(Case("VP9 720p", 15, 1, 64)) | few])
    assert [row["same"] for row in rows] == ["True"] * 4 + ["False"] * 3 + ["died", "True"]
    assert {tuple(row) for row in rows} == {tuple(rows[0])}


def test_clips_of_decoding_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {kind: replace(recipe, width=96, height=64, frames=50) for kind, recipe in FORMATS.items()}
    monkeypatch.setattr(decode_cases, "FORMATS", small)
    monkeypatch.setattr(decode_rows, "PACKETS", 100)
    cases = [Case("HEVC 720p", 15, 1, 4, loop=True), Case("HEVC 720p", 15, 1, 8), Case("VP9 720p", 15, 2, 4)]
    make_clips(cases, tmp_path)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(made) == 3
    make_clips(cases, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == made
    clip = store_clip(clip_path(cases[2], tmp_path), tmp_path)
    work = decode_rows.random_batches([clip], cases[2])
    assert {len(batch) for batch in work} == {4}
    assert sum(len(one.sizes) for batch in work for one in batch) >= 100
    assert {len(one.frames) for batch in work for one in batch} == {16}


def test_clips_of_a_step_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "hevc 4K"
    monkeypatch.setattr(train_step, "CLIPS", {kind: replace(train_step.CLIPS[kind], width=96, height=64, frames=4)})
    made = {path: path.stat().st_mtime_ns for path in train_step.clip_files(tmp_path, kind, 2)}
    assert len(made) == len(list(tmp_path.iterdir())) == 2
    assert {path: path.stat().st_mtime_ns for path in train_step.clip_files(tmp_path, kind, 2)} == made


def test_rows_of_decoding_say_what_threads_compute() -> None:
    began, stop = threading.Event(), threading.Event()

    def compute() -> None:
        while not stop.is_set():
            if time.thread_time() > 0.05:
                began.set()

    thread = threading.Thread(target=compute, name="computes-3")
    with HostTimes() as host:
        thread.start()
        assert began.wait(120)
    stop.set()
    thread.join()
    assert host.cores["computes"] > 0
    assert host.busiest[0] > 0
    assert f"on core {host.busiest[1]}" in str(host)


def test_a_run_keeps_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that came to its end, and of one whose time was up."""
    file = tmp_path / "found.json"
    monkeypatch.setattr(bench_main, "PROGRAMS", {"decode": ("--no-such-option",), "images": ("--no-such-option",)})
    assert not bench_main.run(["decode", "images"], file, 0.0, tmp_path)
    found = json.loads(file.read_text())
    assert set(found["programs"]) == {"decode", "images"}
    assert found["programs"]["decode"]["rows"] == []
    assert found["machine"]["cores"] > 0


def test_tables_go_to_their_places(tmp_path: Path) -> None:
    """Of every machine, with the bars that were missed; the rest of the document stays."""
    program = {
        "rows": [{"clips": "x", "of limit": 0.9}], "seconds": 3.2, "notes": ["a kernel"],
        "checks": [{"name": "of the limit, x", "value": 0.9, "bar": 0.95, "pass": False}],
    }  # fmt: skip
    about = {"driver": "580", "cores": 16, "cpu": "Xeon", "python": "3.12", "versions": {"torch": "2.11"}}
    files = []
    for gpu in ("H100", "H200"):
        files.append(tmp_path / f"{gpu}.json")
        files[-1].write_text(json.dumps({"machine": {"gpu": gpu, **about}, "programs": {"decode": program}}))
    document = tmp_path / "doc.md"
    document.write_text("a\n<!-- machines -->\n<!-- end -->\nb\n<!-- decode -->\nold\n<!-- end -->\nc\n")
    command = [sys.executable, "-m", "tools.bench", "--tables", *map(str, files), "--into", str(document)]
    for _ in range(2):
        subprocess.run(command, check=True, timeout=120)
        text = document.read_text()
        assert text.startswith("a\n")
        assert text.endswith("<!-- end -->\nc\n")
        assert "old" not in text
        assert (
            text.count("\n    a kernel\n")
            == text.count("| x | 0.9 |")
            == text.count("of the limit, x: 0.9 (bar 0.95)")
            == 2
        )
        assert text.index("- H100: driver 580, 16 cores") < text.index("H200, 3 s:")


def test_every_script_of_a_fault_is_in_the_notes() -> None:
    notes = (Path(__file__).parents[2] / "docs/dali-notes.md").read_text(encoding="utf-8")
    assert len(FAULTS) >= 10
    assert [path.stem for path in FAULTS if f"| `{path.stem}` |" not in notes] == []


@pytest.mark.parametrize("name", ["colour_matrix", "repeated_frames", "short_tar", "vp8_hidden_frames"])
def test_scripts_of_faults_on_a_cpu_come_to_a_verdict(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = next(path for path in FAULTS if path.stem == name)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    # A later DALI may be without the fault; that the script can still tell is what counts.
    verdicts = {0: "fault shown", 1: "not shown"}
    assert capsys.readouterr().out.splitlines()[-1].startswith(verdicts[ended.value.code])  # type: ignore[index]


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    report = decode.Report("x", [{"a": 1}], [], [], [{"b": 2}])
    report.write(tmp_path / "x.json", quick=False, about={})
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["details"] == [{"b": 2}]
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
