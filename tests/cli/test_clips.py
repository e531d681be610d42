"""`streamvid ls`, `extract`, `diff` and `info --duplicates`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import streamvid as sv
from streamvid.cli.main import main
from tests.support.packed import NATURAL_ORDER, make_videos
from tests.support.refused import assert_refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clips")
    make_videos(root / "in")
    rows = "".join(f'{name},{n},"a\t{n} \x1b[2J\u202e"\n' for n, name in enumerate(NATURAL_ORDER))
    (root / "list.csv").write_text("path,label,caption\n" + rows)
    assert main(["pack", str(root / "in"), str(root / "ds"), "--labels", str(root / "list.csv")]) == 0
    return root


def test_a_dataset_of_which_all_is_forgotten(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing can be widened then."""
    shutil.copytree(folder / "ds", tmp_path / "ds")
    (tmp_path / "keys.txt").write_text("\n".join(sv.Dataset.open(tmp_path / "ds").clips.key))
    assert main(["forget", str(tmp_path / "ds"), "--keys", str(tmp_path / "keys.txt")]) == 0
    capsys.readouterr()
    assert main(["ls", str(tmp_path / "ds")]) == 0
    assert capsys.readouterr().err == "streamvid: no clip is listed: the dataset has none, or all are forgotten\n"


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(folder / "ds"), "--where", "frames == 12"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(line[0][:7], *line[2:]) for line in lines] == [
        ("a_one-e", "0.4", "12", "30", "96", "64", "h264", "0"),
        ("b_clip2", "0.4", "12", "30", "160", "144", "hevc", "2"),
    ]
    assert main(["ls", str(folder / "ds"), "--where", "frames == 13"]) == 0
    assert capsys.readouterr().err == "streamvid: no clip is listed: widen --where or --keys\n"
    assert main(["extract", str(folder / "ds"), str(folder / "none"), "--where", "frames == 13"]) == 0
    assert capsys.readouterr() == ("", "streamvid: no clip is extracted: widen --where or --keys\n")
    assert main(["ls", str(folder / "ds"), "--json", "--limit", "2", "--columns", "key, caption"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["caption"] for row in found] == ["a\t0 \x1b[2J\u202e", "a\t1 \x1b[2J\u202e"]
    assert main(["ls", str(folder / "ds"), "--limit", "1", "--columns", "caption,label"]) == 0
    assert capsys.readouterr().out == "a\ufffd0 \ufffd[2J\ufffd\t0\n"


def test_ls_into_a_pipe_that_closes(folder: Path) -> None:
    command = [sys.executable, "-m", "streamvid", "ls", str(folder / "ds")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141


def test_extract_and_diff(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["extract", str(folder / "ds"), str(out), "slow", "top"]) == 0
    assert "extracted 2 clips, " in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"slow.mp4", "slow.json", "top.mp4", "top.json"}
    assert main(["extract", str(folder / "ds"), str(out), "slow", "top"]) == 0
    assert "2 clips had been extracted before" in capsys.readouterr().out
    damaged = shutil.copytree(folder / "ds", tmp_path / "damaged")
    for tar in (damaged / "shards").glob("*.tar"):
        tar.write_bytes(bytes(tar.stat().st_size))
    assert main(["extract", str(damaged), str(tmp_path / "none"), "slow"]) == 1
    assert "1 clip cannot be read:" in capsys.readouterr().out
    assert main(["pack", str(out), str(tmp_path / "ds"), "--for", "any"]) == 0
    capsys.readouterr()
    assert main(["diff", str(folder / "ds"), str(folder / "ds")]) == 0
    assert capsys.readouterr().out == "0 added, 0 removed, 0 changed, 6 the same\n"
    assert main(["diff", str(folder / "ds"), ""]) == 2
    assert "dataset is an empty path" in capsys.readouterr().err
    assert main(["extract", str(folder / "ds"), f"{tmp_path}/o\x1b[31mut/", "slow"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "ds"), str(folder / "ds")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 added, 0 removed, 2 changed (")
    assert sum(line.startswith("+ ") for line in lines) == 4
    assert any(line.startswith("~ slow: ") and "caption" in line for line in lines)
    assert main(["diff", str(tmp_path / "ds"), str(folder / "ds"), "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["changed"]) == {"slow", "top"}


def test_revisions(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = str(tmp_path / "ds")
    assert main(["pack", str(folder / "in/b"), new, "--for", "any"]) == 0
    assert main(["pack", str(folder / "in/a"), new, "--for", "any", "--append"]) == 0
    capsys.readouterr()
    assert main(["diff", new, "--revision", "0"]) == 1
    assert capsys.readouterr().out.splitlines() == ["2 added, 0 removed, 0 changed, 2 the same", "+ one", "+ two"]
    assert main(["diff", new, "--revision", "1", "--revision", "0"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["- one", "- two"]
    assert main(["diff", new, "--revision", "1"]) == 0
    assert main(["ls", new, "--revision", "0", "--columns", "key"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["extract", new, str(tmp_path / "out"), "--revision", "0"]) == 0
    assert len(list((tmp_path / "out").glob("*.mp4"))) == 2


def test_duplicates(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.mp4").write_bytes((folder / "in/slow.mp4").read_bytes())
    assert main(["pack", str(tmp_path), str(tmp_path / "ds")]) == 0
    assert main(["info", str(tmp_path / "ds"), "--duplicates"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "  a, b, c"
    assert lines[-2].startswith("duplicates: 2 clips, ")
    assert main(["info", str(tmp_path / "ds"), "--duplicates", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["duplicates"]["groups"] == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ls", "nowhere"], "no dataset at nowhere"),
        (["ls", "ds", "--columns", "captoin"], "did you mean 'caption'?"),
        (["ls", "ds", "--limit", "-1"], "limit must be a whole number"),
        (["ls", "ds", "--where", "nothing ="], "nothing ="),
        (["extract", "ds", "out", "nobody"], "not in the dataset: 'nobody'"),
        (["extract", "ds", "out", "slow", "--keys", "list.csv"], "leave out --keys"),
        (["extract", "ds", "list.csv"], "cannot make the folder"),
        (["extract", "ds", "ds"], "ds is a dataset, not a place"),
        (["extract", "ds", "nobody"], "nobody may be a key or a new folder"),
        (["diff", "ds", "nowhere"], "no dataset at nowhere"),
        (["diff", "ds"], "two things are compared"),
        (["diff", "ds", "--revision", "3"], "there is no revision 3"),
    ],
)
def test_errors_are_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(folder)
    assert_refused(capsys, arguments, said)
