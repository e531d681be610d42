"""`streamvid merge`, `split` and `reshard`."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.cli.main import main
from streamvid.dataset.dataset import Dataset
from tests.support.packed import make_videos
from tests.support.refused import assert_refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reshape")
    make_videos(root / "in")
    for name in ("a", "b"):
        assert main(["pack", str(root / "in" / name), str(root / name), "--for", "any"]) == 0
    return root


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))


def test_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, new = str(folder / "a"), str(folder / "b"), tmp_path / "new"
    assert main(["merge", a, b, str(new)]) == 0
    out = capsys.readouterr().out
    assert "merged 4 clips (37 frames, " in out
    assert f"its videos stay in {a}, {b}\n" in out
    assert main(["merge", a, b, str(new)]) == 0
    assert capsys.readouterr().out.startswith("nothing to do: ")
    assert main(["reshard", str(new), str(tmp_path / "packed"), "--shard-size", "8kB", "--shuffle", "--seed", "3"]) == 0
    assert "copied 4 clips" in capsys.readouterr().out
    assert len(Dataset.open(tmp_path / "packed").shards) > 1
    assert main(["diff", str(new), str(tmp_path / "packed")]) == 0
    capsys.readouterr()
    (tmp_path / "one.txt").write_text("one\n")
    assert main(["split", str(new), str(tmp_path / "k"), "--keys", f"x={tmp_path / 'one.txt'}", "--copy"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 4 clips are in no part"
    assert main(["split", str(new), str(tmp_path / "s"), "--shares", "a=0.5,b=0.5", "--group", "key"]) == 0
    assert sum(len(Dataset.open(tmp_path / "s" / name)) for name in "ab") == 4
    assert main(["split", str(new), str(tmp_path / "c"), "--column", "codec"]) == 0
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"h264", "hevc", "vp9"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["merge", "a", "nowhere", "out"], "no dataset at nowhere"),
        (["merge", "a", "a", "out"], "a is given more than once"),
        (["merge", "a", "b"], "b holds a dataset already"),
        (["merge", "a", "a"], "choose another destination"),
        (["merge", "a", "b", "out", "--workers", "0"], "--workers 0"),
        (["split", "a", "out", "--shares", "train"], "--shares train: give each part once, as train=0.9,test=0.1"),
        (["split", "a", "out", "--shares", "x=0.5,x=0.5"], "give each part once"),
        (["split", "a", "out", "--shares", "x=2"], "the share of 'x' must be a number"),
        (["split", "a", "out", "--shares", "x=1", "--group", "sauce"], "did you mean 'source'"),
        (["split", "a", "out", "--keys", "x=nowhere.txt"], "cannot read the keys"),
        (["split", "a", "out", "--column", "label", "--seed=1"], "--seed does nothing without --shares"),
        (["merge", "a", "b", "out", "--shard-size", "1G"], "--shard-size does nothing without --copy"),
        (["split", "a", "out", "--column", "label"], "no clip has a value there"),
        (["split", "a", "out", "--shares", "x=1", "--seed", "-1"], "seed must be"),
        (["reshard", "a", "a", "--overwrite"], "choose another destination"),
        (["reshard", "a", "in/top.avi"], "cannot make the folder"),
    ],
)
def test_errors_are_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(folder)
    assert_refused(capsys, arguments, said)
