"""How pytest-xdist gives files of tests to its workers when one of them dies. A plugin of pytest."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling


class FileScheduling(LoadFileScheduling):
    """`--dist loadfile`, as xdist 3.8 does not go on after a lost worker: it gives the others the files that were done,
    waits for reports of them for ever, and has the test run again that ended the worker."""

    def remove_node(self, node: Any) -> str | None:
        files = self.assigned_work.pop(node)
        left = [(file, test) for file, tests in files.items() for test, done in tests.items() if not done]
        for file, test in left[1:]:
            self.workqueue.setdefault(file, {})[test] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0][1] if left else None

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        # A worker does not begin its last test before it is given another, or told that there is none.
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None
