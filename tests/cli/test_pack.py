"""`streamvid pack` with the options that convert."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from streamvid.cli.main import main
from streamvid.cli.pack import parse_rate
from tests.support.clips import write
from tools.clips import Recipe


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("24", Fraction(24)),
        ("29.97", Fraction(30000, 1001)),
        ("23.976", Fraction(24000, 1001)),
        ("30000/1001", Fraction(30000, 1001)),
        ("0.5", Fraction(1, 2)),
        ("12.5", Fraction(25, 2)),
    ],
)
def test_rates(text: str, rate: Fraction) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "1e9", "1/0", "nan", "inf"])
def test_invalid_rates_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["pack", "in", "out", f"--max-fps={text}"])
    assert stopped.value.code == 2
    assert "is not a rate" in capsys.readouterr().err


def rows(dataset: Path) -> list[dict[str, object]]:
    return [row for path in sorted((dataset / "shards").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    write(Recipe(width=192, height=128, frames=30, fps=Fraction(60)), folder / "a.mp4")
    write(Recipe(width=192, height=128, frames=6, gop=1, b_frames=0, pix_fmt="yuv422p"), folder / "intra.mp4")
    return folder


def test_all_options_of_transcoding_together(videos: Path, tmp_path: Path) -> None:
    options = ["--codec", "hevc", "--short-side", "96", "--max-fps", "30", "--gop", "5", "--crf", "30"]
    assert main(["pack", str(videos), str(tmp_path / "ds"), "--workers", "1", *options]) == 0
    found = rows(tmp_path / "ds")
    assert [(row["codec"], row["width"], row["height"], row["frames"], row["random_access"]) for row in found] == [
        ("hevc", 144, 96, 15, 3),
        ("hevc", 144, 96, 6, 2),
    ]


def test_a_folder_of_control_characters_is_shown_without(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for said in ("packed", "nothing to do"):
        assert main(["pack", str(videos), f"{tmp_path}/d\x1b[31m\ns", "--workers", "1"]) == 0
        assert (out := capsys.readouterr().out).startswith(said)
        assert "/d\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}s" in out


def test_for_any_copies_and_warns(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(videos), str(tmp_path / "gpu"), "--workers", "1"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert [row["random_access"] for row in rows(tmp_path / "gpu")] == [2, 1]
    assert main(["pack", str(videos), str(tmp_path / "any"), "--workers", "1", "--for", "any"]) == 0
    assert "CPU cores decode 1 clip of h264" in capsys.readouterr().out
    assert [row["random_access"] for row in rows(tmp_path / "any")] == [2, 6]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--codec", "av1", "--for", "gpu-no-av1"], "choose another codec"),
        (["--short-side", "7"], "a short side of 7 pixels"),
        (["--codec", "vp9", "--crf", "64"], "a crf of 64 for vp9"),
    ],
)
def test_invalid_transcoding_options_are_refused(
    options: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(tmp_path), str(tmp_path / "ds"), *options]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "ds").exists()


def test_arguments_in_the_wrong_order(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, others = tmp_path / "ds", tmp_path / "others"
    others.mkdir()
    write(Recipe(width=64, height=64, frames=2), others / "b.mp4")
    assert main(["pack", str(videos), str(others)]) == 2
    assert "holds videos, such as " in capsys.readouterr().err
    assert main(["pack", str(videos), str(dataset), "--workers", "1"]) == 0
    for command in ("pack", "index"):
        assert main([command, str(dataset), str(tmp_path / "new")]) == 2
        assert "is a dataset, whose clips are packed already" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "in", "others"]


def test_images_without_a_rate_end_the_pack_with_a_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.packing.test_images import write_jpegs

    write_jpegs(tmp_path / "in/walk", ["1.jpg", "2.jpg", "3.jpg"])
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "ds"), "--workers", "1"]) == 2
    assert "give --fps to streamvid pack" in capsys.readouterr().err
    assert not (tmp_path / "ds").exists(), "nothing was begun"
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "ds"), "--workers", "1", "--fps", "24"]) == 0
    (row,) = rows(tmp_path / "ds")
    assert (row["codec"], row["frames"], row["source"], row["key"]) == ("mjpeg", 3, "walk", "walk")
