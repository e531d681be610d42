"""The one form of all benchmarks: `--quick` and `--json FILE`, a table of rows, and checks of what is promised.

The JSON holds `benchmark`, `quick`, `machine`, `rows` (objects with the same keys), `checks` (objects with `name`,
`value`, `bar` and `pass`: one for each figure that an issue or docs/performance.md promises), `notes`, and `details`
where a program has figures that the table has no room for. A program exits with 1 if a check fails, and with 2 if it
measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

Row = Mapping[str, str | int | float]
_PACKAGES: Final = (
    "streamvid", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "PyNvVideoCodec", "torchcodec", "torch", "av", "numpy",
    "pyarrow", "crc32c", "webdataset",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """A figure that was promised.

    Attributes:
        name: what it is, with its unit.
        value: what came out.
        bar: what it must reach, or must not pass.
        passed: whether it does. "pass" in the JSON.
    """

    name: str
    value: float
    bar: float
    passed: bool

    @classmethod
    def at_least(cls, name: str, value: float, bar: float) -> Check:
        """A figure that must reach the bar."""
        return cls(name, value, bar, value >= bar)

    @classmethod
    def at_most(cls, name: str, value: float, bar: float) -> Check:
        """A figure that must not pass the bar."""
        return cls(name, value, bar, value <= bar)


@dataclass(frozen=True)
class Report:
    """The results of a benchmark.

    Attributes:
        benchmark: its name, such as "stream".
        rows: the table; all rows have the keys of the first, which head its columns.
        checks: what was promised.
        notes: lines to print below the table, such as what the columns mean.
        details: what the rows were made of; for the JSON alone.
    """

    benchmark: str
    rows: Sequence[Row]
    checks: Sequence[Check]
    notes: Sequence[str] = ()
    details: Sequence[Mapping[str, object]] = ()

    def write(self, path: Path, *, quick: bool, about: Mapping[str, object]) -> None:
        """The JSON, put in the place of the one before at once: a program that is stopped leaves a whole one."""
        draft = path.with_name(path.name + ".part")
        draft.write_text(to_json(self, quick=quick, about=about), encoding="utf-8")
        draft.replace(path)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of everything: under a minute on two cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and checks there as well")
    return parser


def finish(report: Report, options: argparse.Namespace, about: Mapping[str, object] | None = None) -> int:
    """Print the report, write the JSON if asked to, and give the program's exit code: 0, 1 if a check failed, or 2 if
    there is no row.

    Args:
        report: what came out.
        options: as `arguments` made them.
        about: the machine that it was measured on; default: this one.
    """
    about = about or machine()
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if not report.rows:
        console.print(*report.notes, f"{report.benchmark}: nothing was measured", sep="\n")
        return 2
    title = f"{report.benchmark}: {about['cpu']}, {about['cores']} cores"
    table = Table(title=title + (f", {about['gpu']}" if about["gpu"] else ""))
    for column, value in report.rows[0].items():
        table.add_column(column, justify="left" if isinstance(value, str) else "right")
    for row in report.rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console.print(table)
    for note in report.notes:
        console.print(note)
    for check in report.checks:
        verdict = "passed" if check.passed else "FAILED"
        console.print(f"{verdict}: {check.name}: {_cell(check.value)} (bar {_cell(check.bar)})")
    if options.json is not None:
        report.write(options.json, quick=options.quick, about=about)
    return 0 if all(check.passed for check in report.checks) else 1


def markdown(rows: Sequence[Row]) -> str:
    """A table of rows for a document."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_json(report: Report, *, quick: bool, about: Mapping[str, object]) -> str:
    """The report as the module's docstring describes it."""
    checks = [{"name": c.name, "value": c.value, "bar": c.bar, "pass": c.passed} for c in report.checks]
    rows = [dict(row) for row in report.rows]
    content = {"benchmark": report.benchmark, "quick": quick, "machine": about, "rows": rows, "checks": checks}
    content |= {"notes": list(report.notes)}
    if report.details:
        content |= {"details": [dict(detail) for detail in report.details]}
    return json.dumps(content, indent=1) + "\n"


def machine() -> dict[str, object]:
    """The machine: processor, usable cores, GPU and driver if any, and versions."""
    gpu, driver = _gpu()
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "driver": driver,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpu() -> tuple[str | None, str | None]:
    """Name of the first GPU, and the driver's version."""
    if not shutil.which("nvidia-smi"):
        return None, None
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    lines = found.stdout.splitlines()
    if found.returncode or not lines:
        return None, None
    name, _, driver = lines[0].partition(",")
    return (f"{len(lines)} x " if len(lines) > 1 else "") + name.strip(), driver.strip()


def _cell(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value
