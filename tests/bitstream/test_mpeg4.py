"""MPEG-4 of encoders in practice: VOPs that are not coded give no frame, and packets have one VOP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamvid.bitstream.mpeg4 import output_order, vop_classifier
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import VideoError
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.video.frame_index import HIDDEN
from streamvid.video.ingest import index_by_tables
from streamvid.video.probe import CannotCopyError
from streamvid.video.read_buffer import read_range
from streamvid.video.remux import store_clip
from tests.support.mpeg4 import encoded, mux, not_coded, packed, with_not_coded, without_delay
from tests.support.reference import sequential, slice_of


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("container", ["avi", "mp4", "mkv", "ts"])
def test_frames_beside_vops_that_are_not_coded(container: str, b_frames: int, tmp_path: Path) -> None:
    """A player shows the picture before once more; FFmpeg gives no frame for it."""
    vops = encoded(tmp_path, b_frames=b_frames)
    before_p = [n for n, one in enumerate(vops[1:]) if one.kind == 1]
    after = before_p[2:6:3]
    source = mux(with_not_coded(vops, after), tmp_path / f"a.{container}")
    frames = sequential(source)
    assert len(frames) == len(vops)
    clip = store_clip(source, tmp_path)
    assert np.count_nonzero(clip.index.flags & HIDDEN) == len(after)
    assert len(clip.index.visible) == len(frames)
    for number, expected in enumerate(frames):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, [number]))[0], expected)


def test_a_packed_bitstream_is_taken_apart_in_avi_and_not_copied_elsewhere(tmp_path: Path) -> None:
    vops = packed(encoded(tmp_path, b_frames=1))
    frames = sequential(mux(vops, tmp_path / "a.avi"))
    clip = store_clip(tmp_path / "a.avi", tmp_path)
    assert len(clip.index.visible) == len(frames) == 24
    assert b"1393p\0" in (tmp_path / "a.avi").read_bytes()
    assert b"1393p\0" not in clip.mp4.read_bytes()  # the user data that says so
    for number in (0, 1, 7, 12, 23):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, [number]))[0], frames[number])
    with pytest.raises(CannotCopyError, match="packed bitstream"):
        store_clip(mux(vops, tmp_path / "b.mkv"), tmp_path)


def test_small_b_vops_of_a_packed_bitstream_are_frames(tmp_path: Path) -> None:
    """FFmpeg's filter takes a packet of 19 bytes for the placeholder, and frames were lost."""
    vops = packed(encoded(tmp_path, b_frames=2, still=True))
    assert any(one.kind == 2 and len(one.data) <= 19 for one in vops)
    frames = sequential(mux(vops, tmp_path / "a.avi"))
    clip = store_clip(tmp_path / "a.avi", tmp_path)
    assert len(clip.index.visible) == len(frames) == 24
    for number in (0, 1, 7, 12, 23):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, [number]))[0], frames[number])


def test_whether_a_vop_is_coded_is_known_once_its_clock_is() -> None:
    data = memoryview(not_coded(40).data)
    assert not vop_classifier(b"")(data).hidden  # without a VideoObjectLayer, nobody knows where the flag is
    found = vop_classifier(b"\x00\x00\x01\x20" + _VOL)(data)
    assert found.hidden
    assert not found.random_access


# random_accessible_vol, video_object_type_indication 1, is_object_layer_identifier 0, aspect_ratio_info 1,
# vol_control_parameters 0, video_object_layer_shape 0, marker, vop_time_increment_resolution 1000, marker, …
_VOL = int("0" + "00000001" + "0" + "0001" + "0" + "00" + "1" + f"{1000:016b}" + "1" + "0" * 29, 2).to_bytes(8, "big")


def test_b_vops_are_shown_before_what_they_follow() -> None:
    assert output_order([False, False, True, True, False, False, True]) == [0, 2, 3, 1, 4, 6, 5]
    assert output_order([]) == []


@pytest.mark.parametrize("container", ["mp4", "avi", "m4v"])
def test_b_vops_that_no_header_states(container: str, tmp_path: Path) -> None:
    """FFmpeg shows the VOP that precedes the first one twice, and at once. Without B-VOPs nothing is wrong."""
    for b_frames in (2, 0):
        vops = [one._replace(data=without_delay(one.data)) for one in encoded(tmp_path, b_frames=b_frames)]
        path = mux(vops, tmp_path / f"{b_frames}.{container}")
        if not b_frames:
            assert len(store_clip(path, tmp_path).index.visible) == 24
            continue
        assert len(sequential(path)) == 25
        with pytest.raises(VideoError, match="do not say that it has B-VOPs"):
            store_clip(path, tmp_path)
        with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError):
            index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])
