"""The native part, built as `pip install` builds it, and under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import streamvid
from streamvid.color import render

SOURCE = Path(streamvid.__file__).parent / "native/pixels.c"
UNDER_SANITIZERS = """
import ctypes, sys
import pytest
from streamvid.color import render

library = ctypes.CDLL(sys.argv[1])
library.sv_render.argtypes, library.sv_render.restype = [ctypes.c_void_p, ctypes.c_void_p], None
render.compiled = lambda: library.sv_render
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/color/test_render.py"]))
"""
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")


def build(target: Path, *flags: str) -> Path:
    (extension,) = (
        one
        for one in tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
        if one["name"] == "streamvid.native.pixels"
    )
    assert extension["optional"]
    assert [Path(one).resolve() for one in extension["sources"]] == [SOURCE]
    assert not [flag for flag in extension["extra-compile-args"] if "native" in flag], "it runs on other machines, too"
    command = ["gcc", *extension["extra-compile-args"], *flags, "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, str(SOURCE), "-o", str(target)], check=True, timeout=120)
    return target


@needs_compiler
def test_it_neither_leaves_its_memory_nor_computes_what_is_not_defined(tmp_path: Path) -> None:
    # The last level of optimization counts: the highest takes gcc some seconds.
    flags = ("-O1", "-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
    library = build(tmp_path / "pixels.so", *flags)
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # Leaks are Python's own, at its exit. Fresh memory is full of floats of 3e38, which no level can be.
    asan = "detect_leaks=0:max_malloc_fill_size=1000000000:malloc_fill_byte=127"
    settings = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": asan, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", UNDER_SANITIZERS, str(library)],
        env=os.environ | settings, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]


@needs_compiler
def test_a_build_for_other_code_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An editable install keeps what was built before `git pull`."""
    (tmp_path / "native").mkdir()
    (tmp_path / "color").mkdir()
    monkeypatch.setattr(render, "__file__", str(tmp_path / "color/render.py"))

    def found() -> Any:
        caplog.clear()
        return render.compiled.__wrapped__()

    assert found() is None
    assert "was not built" in caplog.text
    library = build(tmp_path / "native/pixels.abi3.so", "-O0")
    assert found() is not None
    assert not caplog.text
    monkeypatch.setattr(render, "_VERSION", render._VERSION + 1)
    assert found() is None
    library.unlink()  # it is mapped: writing into it would crash
    library.write_bytes(b"of another machine")
    assert found() is None
    assert "was not built" in caplog.text
