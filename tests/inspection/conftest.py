"""Datasets that several modules look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamvid.packing.index import index
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.packed import NATURAL_ORDER, make_videos


@pytest.fixture(scope="package")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`packed` and `indexed`, the same six videos with two columns and one duplicate; `fast`, by tables alone."""
    root = tmp_path_factory.mktemp("places")
    make_videos(root / "in")
    (root / "in/b/twin.mp4").write_bytes((root / "in/a/one.mp4").read_bytes())
    names = [*NATURAL_ORDER, "b/twin.mp4"]
    lines = [f'{name},{name[0]},{n / 4},"a\t{n} \x1b[2J é"' for n, name in enumerate(names)]
    (root / "list.csv").write_text("path,label,score,caption\n" + "\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(root / "user"))
        options, labels = PackOptions("any"), root / "list.csv"
        pack(root / "in", root / "packed", labels=labels, shard_size=16_000, options=options, progress=False)
        index(root / "in", root / "indexed", labels=labels, progress=False)
        index(root / "in", root / "fast", labels=labels, fast=True, progress=False)
        yield root
