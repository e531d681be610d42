"""CSV and JSON lines that Arrow's readers take gigabytes for, or crash on."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.packing.lists import read_list
from streamvid.storage import table_bounds
from streamvid.storage.table_bounds import MAX_COLUMNS, check_csv, check_json_lines
from tests.support.bounded import outcomes

ROW = b'{"path": "a.mp4", "text": "[{ \\" [[", "tags": ["a"], "box": {"b": [1]}}\n'


def hostile_lists(folder: Path) -> dict[str, bytes]:
    """By file name."""
    return {
        "columns.csv": b",".join(b"%x" % n for n in range(100_000)) + b"\n" + b",".join([b"1"] * 100_000),
        "header.csv": b'path,"' + b"," * 200_000 + b'"\n',
        "binary.csv": b"path\n\xff\xfe.mp4\n",
        "deep.jsonl": b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
        "deep_list.jsonl": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "deep_later.jsonl": b'{"a":1}\n{"a":"x' + b'","b":[' * 1000 + b"]" * 1000 + b"}\n",
        "null.jsonl": b"null\n",
        "no_object.jsonl": b'null:"a.mp4"',
        "keys.jsonl": b"".join(b'{"%x":1}\n' % n for n in range(10_000)),
        "nested_keys.jsonl": b"".join(b'{"a":[{"%x":1}]}\n' % n for n in range(10_000)),
        "binary.jsonl": b'{"path":"\xff.mp4"}\n',
        "empty.jsonl": b"",
        "empty.csv": b"",
    }


def read(path: str) -> None:
    read_list(path)


def test_lists_that_take_gigabytes_or_crash(tmp_path: Path, forked_python: Path) -> None:
    made = hostile_lists(tmp_path)
    for name, data in made.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "sparse.csv").write_bytes(b"path\n")
    with (tmp_path / "sparse.csv").open("r+b") as file:
        file.truncate(3 << 30)
    names = [*made, "sparse.csv"]
    for name, text in zip(names, outcomes(forked_python, read, [str(tmp_path / name) for name in names]), strict=True):
        assert name in text, (name, text)
        assert "\n" not in text


def test_ordinary_lists_are_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    check_csv(b"path,label\n" + b"a.mp4,1\n" * MAX_COLUMNS)
    for base in (table_bounds.BASE_BYTES, 0):  # as if it were large: its columns are counted
        monkeypatch.setattr(table_bounds, "BASE_BYTES", base)
        check_json_lines(ROW * 3000)
        check_json_lines(b"\xef\xbb\xbf\r\n" + ROW.rstrip() * 2)
        check_json_lines(b'{"text": "' + b"[" * 200_000 + b'"}\n' + ROW * 10)
        check_json_lines(b'{"a": null}\nnull\n{"a": {"b": 1}}\n')
