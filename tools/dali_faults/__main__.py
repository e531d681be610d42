"""Run all scripts of this folder, each in a process of its own, and say what each shows.

python -m tools.dali_faults [TEXT]        # only scripts whose name holds the text
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MOST_SECONDS = 180
VERDICTS = {0: "fault shown", 1: "not shown", 2: "cannot run here"}


def run(script: Path) -> tuple[str, list[str]]:
    """The verdict, and what the script printed."""
    try:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"took more than {MOST_SECONDS} s", []
    verdict = VERDICTS.get(done.returncode, f"ended with {done.returncode}")
    lines = done.stdout.splitlines()
    if done.returncode not in (0, 1) and not lines:
        lines = done.stderr.strip().splitlines()[-3:]
    return verdict, lines


def main() -> int:
    """The program."""
    text = sys.argv[1] if len(sys.argv) > 1 else ""
    found = []
    for script in sorted(Path(__file__).parent.glob("[!_]*.py")):
        if text in script.stem:
            verdict, lines = run(script)
            print(f"== {script.stem}: {verdict}", *lines, sep="\n   ", flush=True)
            found.append((script.stem, verdict))
    print()
    for name, verdict in found:
        print(f"{name:24} {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
