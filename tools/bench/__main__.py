"""The benchmarks of a GPU in one run, and their tables in docs/performance.md.

    python -m tools.bench.make_clips DIR                                # before, anywhere
    python -m tools.bench --json FILE [--clips DIR] [--only NAME …] [--seconds N]     # on a GPU: twelve minutes
    python -m tools.bench --tables FILE … [--into docs/performance.md]

The first runs one after the other and writes what each has found, and the machine, as soon as it is known. The second
prints the tables of such files; or puts each between the lines `<!-- NAME -->` and `<!-- end -->` of a document.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tools.bench.report import machine, markdown

PROGRAMS: Final = {
    "decode": ("--seconds", "400"),
    "train_step": ("--quick",),
    "images": ("--rounds", "1"),
    "random_access": (
        "--lengths", "60", "300", "--cut", "5", "--only", "StreamLoader", "GpuData", "PyNv", "whole",
    ),
}  # fmt: skip
"""By name, the arguments of each."""
WITH_CLIPS: Final = ("decode", "train_step")
_TICK: Final = 1.0
_END: Final = 10.0
"""Seconds that one has to end its own processes."""


def run(names: Sequence[str], file: Path, seconds: float, clips: Path | None = None) -> bool:
    """Run programs; whether all came to an end with all bars reached.

    Args:
        names: keys of `PROGRAMS`.
        file: for what they have found.
        seconds: that they may take together.
        clips: made beforehand.
    """
    found: dict[str, Any] = {"machine": machine(), "programs": {}}
    began, passed = time.monotonic(), True

    def keep(part: Path, started: float, code: int | None) -> None:
        """Write what is known by now: a run that is killed leaves it."""
        one = json.loads(part.read_text()) if part.exists() else {"rows": [], "checks": [], "notes": []}
        found["programs"][part.stem] = one | {"seconds": time.monotonic() - started, "code": code}
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", f"tools.bench.{name}", *PROGRAMS[name], "--json", str(part)]
            if clips is not None and name in WITH_CLIPS:
                command += ["--clips", str(clips)]
            started = time.monotonic()

            with subprocess.Popen(command) as process:
                while (code := process.poll()) is None and time.monotonic() < max(began + seconds, started + 1.0):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_TICK)
                    keep(part, started, None)
                if code is None:
                    process.send_signal(signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_END)
                    process.kill()
                    code = -1
            passed = passed and code == 0
            keep(part, started, code)
    return passed


def merged(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs on GPUs of the same name, of some programs each, as one."""
    by_gpu: dict[str, dict[str, Any]] = {}
    for one in found:
        by_gpu.setdefault(one["machine"]["gpu"], one)["programs"] |= one["programs"]
    return list(by_gpu.values())


def machines(found: Sequence[Mapping[str, Any]]) -> str:
    """The machines of the runs, a line each."""
    lines = []
    for one in found:
        about, taken = one["machine"], sum(program["seconds"] for program in one["programs"].values())
        versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
        lines.append(
            f"- {about['gpu']}: driver {about['driver']}, {about['cores']} cores of an {about['cpu']}, Python "
            f"{about['python']}, {versions}; {taken:.0f} s"
        )
    return "\n".join(lines)


def tables(name: str, found: Sequence[Mapping[str, Any]]) -> str:
    """A program's rows, a table for each machine, the bars that it missed, and its notes."""
    parts = []
    for one in found:
        made = one["programs"].get(name)
        if not made or not made["rows"]:
            continue
        missed = [f"{c['name']}: {c['value']:.3g} (bar {c['bar']:.3g})" for c in made["checks"] if not c["pass"]]
        parts += [f"{one['machine']['gpu']}, {made['seconds']:.0f} s:", markdown(made["rows"])]
        if missed:
            parts.append(f"Of {len(made['checks'])} bars it misses {len(missed)}: {'; '.join(missed)}.")
        if made["notes"]:
            parts.append("\n".join(f"    {line}" for line in made["notes"]))
    return "\n\n".join(parts)


def put(text: str, name: str, made: str) -> str:
    """A document with a program's tables in their place."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}\n{made}\n\n{match[2]}", text, flags=re.DOTALL)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="run, and write there")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=1e6, help="that all may take together")
    parser.add_argument("--clips", type=Path, metavar="DIR", help="clips that tools.bench.make_clips has made there")
    parser.add_argument("--tables", type=Path, nargs="+", metavar="FILE", help="what such runs have written")
    parser.add_argument("--into", type=Path, metavar="DOCUMENT")
    options = parser.parse_args()
    if (options.json is None) == (options.tables is None):
        parser.error("give --json to run, or --tables for the tables of what was run")
    if options.json is not None:
        return 0 if run(options.only, options.json, options.seconds, options.clips) else 1
    found = merged([json.loads(path.read_text(encoding="utf-8")) for path in options.tables])
    text = "" if options.into is None else options.into.read_text(encoding="utf-8")
    for name in ("machines", *options.only):
        made = machines(found) if name == "machines" else tables(name, found)
        if options.into is None:
            print(f"## {name}\n\n{made}\n")
        elif made:
            text = put(text, name, made)
    if options.into is not None:
        options.into.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
