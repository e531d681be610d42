"""The native module of NVDEC under sanitizers: jobs of many sizes, each call of the driver failing once, seven sessions
at once, one that is stopped by another thread."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.nvdec_driver import STAND_IN, compile_c

EXERCISE = Path(__file__).parent / "exercise.c"


@pytest.mark.parametrize(("sanitizer", "parts"), [("address,undefined", ()), ("thread", ("threads",))])
def test_nothing_is_leaked_raced_or_undefined(sanitizer: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    driver = compile_c([STAND_IN], tmp_path / "driver.so", "-shared", "-fPIC", *flags)
    program = compile_c([EXERCISE], tmp_path / "exercise", *flags)
    done = subprocess.run([program, driver, *parts], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-4000:]
