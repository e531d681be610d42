"""A test that ends its worker costs itself, not the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_run_goes_on_after_a_lost_worker(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, tests in (("a", 3), ("b", 9), ("c", 3), ("d", 3), ("e", 1), ("f", 3)):
        body = "    if n == 5:\n        time.sleep(1)\n        os._exit(1)\n    time.sleep(0.1)\n"
        marks = f"@pytest.mark.parametrize('n', range({tests}))\n"
        (tmp_path / f"test_{name}.py").write_text(f"import os, time, pytest\n{marks}def test_it(n):\n{body}")
    options = [
        "-n2", "--dist=loadfile", "-p", "xdist.plugin", "-p", "tests.support.scheduler", "-p", "no:cacheprovider",
        f"--rootdir={tmp_path}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take long to import
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert "1 failed, 21 passed" in ran.stdout
    assert "crashed while running 'test_b.py::test_it[5]'" in ran.stdout
