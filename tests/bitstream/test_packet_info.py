"""Classification of packets, compared with the settings of their encoders, and applied to arbitrary bytes."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream import packet_info
from streamvid.bitstream.packet_kind import PacketKind
from streamvid.decode.cpu import decode_with_pyav
from streamvid.mp4.boxes import full_box
from streamvid.mp4.sample_entry import visual_sample_description
from streamvid.video.frame_index import DISPOSABLE, RANDOM_ACCESS
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import write
from tests.support.reference import packets_of, sequential, slice_of
from tests.support.remux import remuxing
from tools.clips import Recipe

SMALL = Recipe(width=96, height=64, frames=40, gop=13)
HIDDEN_VP9 = (("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("cpu-used", "5"), ("b", "100k"))
LAYERS = "ts_number_layers=2:ts_target_bitrate=150,300:ts_rate_decimator=2,1:ts_periodicity=2:ts_layer_id=0,1"
THREE_LAYERS = (
    "ts_number_layers=3:ts_target_bitrate=100,200,300:ts_rate_decimator=4,2,1:ts_periodicity=4:ts_layer_id=0,2,1,2"
)
LAYERS_VP9 = (("error-resilient", "1"), ("b", "300k"), ("ts-parameters", f"{LAYERS}:ts_layering_mode=2"))
THREE_LAYERS_VP9 = (("error-resilient", "1"), ("b", "300k"), ("ts-parameters", f"{THREE_LAYERS}:ts_layering_mode=3"))
RECIPES = {
    "h264": replace(SMALL, b_frames=3),
    "h264_pyramid": replace(SMALL, b_frames=7, params=(("b-pyramid", "normal"), ("ref", "4"))),
    "h264_slices": replace(SMALL, params=(("slices", "3"),)),
    "h264_cuts": replace(SMALL, scene=7, params=(("scenecut", "40"), ("min-keyint", "2"))),
    "h264_open_gop": replace(SMALL, open_gop=True, b_frames=3),
    "hevc": replace(SMALL, codec="hevc", b_frames=3),
    "hevc_open_gop": replace(SMALL, codec="hevc", b_frames=3, open_gop=True),
    "hevc_layers": replace(SMALL, codec="hevc", b_frames=3, params=(("temporal-layers", "2"),)),
    "mpeg4": replace(SMALL, codec="mpeg4", b_frames=2),
    "mpeg4_open_gop": replace(SMALL, codec="mpeg4", b_frames=2, open_gop=True),
    "mjpeg": replace(SMALL, codec="mjpeg"),
    "vp8": replace(SMALL, codec="vp8", container="webm"),
    "vp9": replace(SMALL, codec="vp9", container="webm"),
    "vp9_hidden": replace(SMALL, codec="vp9", container="webm", frames=60, gop=30, options=HIDDEN_VP9),
    # Two and three temporal layers, and every frame error resilient.
    "vp9_layers": replace(SMALL, codec="vp9", container="webm", options=LAYERS_VP9),
    "vp9_three_layers": replace(SMALL, codec="vp9", container="webm", options=THREE_LAYERS_VP9),
    # Frames that refresh no picture, but whose probabilities and motion vectors are used by the next.
    "vp9_fragile_layers": replace(SMALL, codec="vp9", container="webm", options=THREE_LAYERS_VP9[1:]),
    "av1": replace(SMALL, codec="av1"),
    "av1_open_gop": replace(SMALL, codec="av1", frames=70, gop=20, params=(("irefresh-type", "1"),)),
    "av1_grain": replace(SMALL, codec="av1", params=(("film-grain", "30"),)),
    "av1_screen": replace(SMALL, codec="av1", params=(("scm", "1"),)),
    "av1_low_delay": replace(SMALL, codec="av1", params=(("pred-struct", "1"),)),
    "av1_deep": replace(SMALL, codec="av1", params=(("hierarchical-levels", "5"),), options=(("preset", "6"),)),
}
NEVER = ("vp8", "vp9", "vp9_hidden")
"""Of these, every packet may have others that depend on it."""


def stored(name: str, folder: Path) -> StoredClip:
    recipe = RECIPES[name]
    return store_clip(write(recipe, folder / f"a.{recipe.container}"), folder)


def decoded_alone(clip: StoredClip, keep: np.ndarray) -> dict[int, np.ndarray]:
    """Decode some packets and nothing else: packet → its frame."""
    index, data = clip.index, packets_of(clip)
    rank = np.empty(len(index), dtype=np.int64)
    rank[np.argsort(index.pts, kind="stable")] = np.arange(len(index))
    numbers = np.flatnonzero(keep)
    part = slice_of(clip, [0])
    frames = np.sort(rank[numbers])
    part = EncodedSlice(
        **{name: getattr(part, name) for name in ("name", "codec", "stsd", "width", "height", "color")},
        data=np.concatenate([np.frombuffer(data[n], dtype=np.uint8) for n in numbers]),
        sizes=index.size[numbers],
        display_order=rank[numbers],
        frames=frames,
    )
    by_rank = dict(zip(frames.tolist(), decode_with_pyav(part), strict=True))
    return {int(n): by_rank[int(rank[n])] for n in numbers}


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_depends_on_a_disposable_packet(name: str, tmp_path: Path) -> None:
    clip = stored(name, tmp_path)
    right = sequential(clip.mp4, full_range=clip.color_range == "pc")
    disposable = (clip.index.flags & DISPOSABLE) != 0
    if name in NEVER:
        assert not disposable.any()
        return
    if RECIPES[name].b_frames:
        assert disposable.any()
    if name == "vp9_fragile_layers":
        assert np.isin(np.flatnonzero(disposable) + 1, clip.index.starts).all()
    elif RECIPES[name].codec in ("av1", "vp9"):
        assert disposable.mean() > 0.4
    number = {int(packet): n for n, packet in enumerate(clip.index.visible)}
    # Each alone, since what depends on one of them may be another; then all together.
    alone = np.flatnonzero(disposable)[:24]
    for dropped in [*alone, np.flatnonzero(disposable)[: len(disposable) - 1]]:
        kept = np.ones(len(disposable), dtype=bool)
        kept[dropped] = False
        for packet, frame in decoded_alone(clip, kept).items():
            np.testing.assert_array_equal(frame, right[number[packet]])


@pytest.mark.parametrize("name", RECIPES)
def test_decoding_may_start_at_a_random_access_packet(name: str, tmp_path: Path) -> None:
    clip = stored(name, tmp_path)
    index = clip.index
    right = sequential(clip.mp4, full_range=clip.color_range == "pc")
    number = {int(packet): n for n, packet in enumerate(index.visible)}
    starts = np.flatnonzero(index.flags & RANDOM_ACCESS)
    assert starts[0] == 0
    assert len(starts) > 1 or name in ("av1", "av1_open_gop", "h264_open_gop")
    for start in starts.tolist():
        behind = np.arange(len(index)) >= start
        # Without its leading packets: those that follow it and are shown before it.
        behind &= (index.pts >= index.pts[start]) | (np.arange(len(index)) == start)
        for packet, frame in decoded_alone(clip, behind).items():
            np.testing.assert_array_equal(frame, right[number[packet]])


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "h264_open_gop"])
def test_key_frames_are_the_encoders(name: str, tmp_path: Path) -> None:
    """Where encoders mark all that decoding may start at, and nothing else."""
    clip = stored(name, tmp_path)
    with av.open(io.BytesIO(clip.mp4.read_bytes()), "r", options={"ignore_editlist": "1"}) as container:
        key = [p.is_keyframe for p in container.demux(video=0) if p.size]
    assert ((clip.index.flags & RANDOM_ACCESS) != 0).tolist() == key


def test_a_recovery_point_is_no_start(tmp_path: Path) -> None:
    clip = stored("h264_open_gop", tmp_path)
    assert np.flatnonzero(clip.index.flags & RANDOM_ACCESS).tolist() == [0]


def units(*headers: bytes) -> memoryview:
    """A packet of NAL units with these first bytes, behind four bytes of length each."""
    return memoryview(b"".join((len(h) + 5).to_bytes(4, "big") + h + bytes(5) for h in headers))


def hevc_unit(kind: int, *, temporal: int = 0, layer: int = 0) -> bytes:
    return bytes([kind << 1 | layer >> 5, (layer & 31) << 3 | temporal + 1])


def test_h264_unit_headers() -> None:
    """What x264 does not write, by ITU-T H.264 table 7-1."""
    of = packet_info.classifier("h264", _stsd(b"avcC", bytes([255] * 30)))
    assert not of(units(b"\x21")).disposable, "nal_ref_idc 1 is a reference too"
    assert not of(units(b"\x01", b"\x21")).disposable, "one slice that is referred to is enough"
    assert of(units(b"\x01", b"\x01")).disposable
    assert of(units(b"\x09", b"\x67", b"\x68", b"\x06", b"\x65")).random_access
    assert of(units(b"\x02", b"\x03", b"\x04")).disposable, "data partitions"
    for no_picture in (units(), units(b"\x67", b"\x68"), units(b"\x06")):
        assert of(no_picture) == PacketKind(order=None)


def test_hevc_unit_headers() -> None:
    """ITU-T H.265 table 7-1."""
    stsd = _stsd(b"hvcC", bytes([255] * 30))

    def of(*packets: memoryview) -> list[PacketKind]:
        return packet_info.classify("hevc", stsd, packets)

    for kind in range(32):
        (got,) = of(units(hevc_unit(35), hevc_unit(39), hevc_unit(kind)))
        assert got.random_access == (16 <= kind <= 21)
        assert got.disposable == (kind in (0, 2, 4, 6, 8, 10, 12, 14))
        assert got.skipped_leading == (kind in (8, 9))
    low, high = of(units(hevc_unit(0)), units(hevc_unit(2, temporal=1)))
    assert not low.disposable, "pictures of a higher sub-layer may refer to it"
    assert high.disposable
    (got,) = of(units(hevc_unit(0, layer=1), hevc_unit(19)))
    assert got.random_access, "another layer says nothing of the base layer"
    assert of(units(hevc_unit(40)))[0] == PacketKind(order=None)


def av1_unit(*parts: tuple[int, str]) -> memoryview:
    """A temporal unit of open bitstream units, each given by its type and the bits of its payload."""
    data = b""
    for kind, text in parts:
        bits = text.replace(" ", "")
        bits += "0" * (-len(bits) % 8)
        payload = bytes(int(bits[n : n + 8], 2) for n in range(0, len(bits), 8))
        data += bytes([kind << 3 | 2, len(payload)]) + payload
    return memoryview(data)


def test_leading_pictures_of_a_new_sequence_are_not_output() -> None:
    stsd = _stsd(b"hvcC", bytes([255] * 30))
    eos, cra, bla, rasl = (hevc_unit(kind) for kind in (36, 21, 16, 8))
    packets = [units(cra), units(rasl, eos), units(cra), units(rasl), units(cra), units(rasl), units(bla), units(rasl)]
    kinds = packet_info.classify("hevc", stsd, packets)
    assert [kind.hidden for kind in kinds] == [False, False, False, True, False, False, False, True]


def test_av1_headers() -> None:
    """What SVT-AV1 does not write, by sections 5.5 and 5.9 of the AV1 specification."""
    # No options, 16x16, no order hints, no screen content tools.
    sequence = (1, "000 0 0 0 0 00000" + "0" * 12 + "00000 0011 0011 1111 1111 0 000 0000 0 0 0")
    key = (6, "0 00 1 0 0")
    hidden_key = (6, "0 00 0 1 1 0 0 00000001")
    refreshes = (6, "0 01 1 1 0 0 00000010")
    refreshes_none = (6, "0 01 1 1 0 0 00000000")
    with_context = (6, "0 01 1 0 0 0 111 00000000")
    show_first, show_second = (3, "1 000"), (3, "1 001")
    units = [
        ((2, ""), sequence, key), (refreshes_none,), (with_context,), (refreshes,), (show_second,),
        (hidden_key, refreshes_none), (refreshes_none, refreshes_none), (show_first,), (show_second,),
        (refreshes,), (show_second,), (sequence, refreshes_none), ((3, ""),), ((6, "0 01 1"),), (key,),
    ]  # fmt: skip
    kinds = packet_info.classify("av1", b"", [av1_unit(*unit) for unit in units])
    disposable = [n for n, kind in enumerate(kinds) if kind.disposable]
    # Of the two that show a picture again, the first two after the hidden key frame show a key frame late, and take
    # all slots for it. A unit with a sequence header, and what ends too soon, are kept. The last key frame has none.
    assert disposable == [1, 2, 4, 6, 10]
    assert [n for n, kind in enumerate(kinds) if kind.random_access] == [0]
    without = packet_info.classify("av1", b"", [av1_unit(*unit) for unit in units[1:4]])
    assert not any(kind.disposable for kind in without), "without a sequence header nothing is known"


def test_av1_key_frames_without_a_sequence_header(tmp_path: Path) -> None:
    """As encoders write that repeat it nowhere: decoders cannot start there."""
    source, path = write(RECIPES["av1"], tmp_path / "source.mp4"), tmp_path / "a.mp4"
    with remuxing(source, path) as copy:
        for number, packet in enumerate(copy.packets):
            data = bytes(packet)
            if number and packet.is_keyframe:
                assert data[0] == 1 << 3 | 2  # a sequence header, which becomes padding
                data = bytes([15 << 3 | 2]) + data[1:]
            copy.mux(packet, data)
    clip = store_clip(path, tmp_path)
    right = sequential(path)
    assert clip.index.starts.tolist() == [0]
    for number in (0, 20, 39):
        (frame,) = decode_with_pyav(slice_of(clip, [number]))
        np.testing.assert_array_equal(frame, right[number])


@pytest.mark.parametrize("header", ["0100 1100", "0100 0100", "0001 0010", "1000 0000"])
def test_av1_stills_with_reduced_headers(header: str) -> None:
    """Their frame headers lack what others begin with, as libaom writes AVIF and single frames."""
    still = (1, "000 1 1 00000 0101 0101")  # still_picture, reduced_still_picture_header
    (kind,) = packet_info.classify("av1", b"", [av1_unit(still, (6, header))])
    assert (kind.random_access, kind.hidden, kind.several, kind.disposable) == (True, False, False, False)


def test_av1_pictures_of_a_unit_that_are_displayed() -> None:
    """A decoder outputs one of the layers of a temporal unit, and every picture of a layer."""
    key, inter, hidden, shown_again = (6, "0 00 1 0 0"), (6, "0 01 1"), (6, "0 01 0"), (3, "1 000")
    units = {
        (key,): 1, (hidden, inter): 1, (hidden, shown_again): 1, (inter, shown_again): 2, (hidden,): 0,
        ((5, ""),): 1, ((6, ""),): 1,
    }  # fmt: skip
    for parts, pictures in units.items():
        (kind,) = packet_info.classify("av1", b"", [av1_unit(*parts)])
        assert (kind.hidden, kind.several) == (pictures == 0, pictures == 2)
    # With extensions: temporal_id 0, spatial_id 0 and 1.
    low, high = (bytes([6 << 3 | 6, layer << 3, 1, 0b0011_0000]) for layer in (0, 1))
    for data, several in ((low + high, False), (low + high + high, True)):
        assert packet_info.classify("av1", b"", [memoryview(data)])[0].several is several


def test_av1_decoders_choose_the_first_operating_point() -> None:
    """Without layers in it every picture is output; pictures of other layers are dropped (5.3.1, 7.18.1)."""

    def unit(point: str, *extensions: str) -> memoryview:
        # As above; then frames with temporal_id and spatial_id, which are key frames that are shown.
        sequence = f"000 0 0 0 0 00001 {point} 00000 {'1' * 12} 00000 0011 0011 1111 1111 0 000 0000 0 0 0"
        frames = [bytes([6 << 3 | 6, int(extension + "000", 2), 1, 0b0001_0000]) for extension in extensions]
        return memoryview(bytes(av1_unit((1, sequence))) + b"".join(frames))

    for point, extensions, pictures in (
        ("0" * 12, ("00000", "00001"), 2),
        ("0011 00000001", ("00000", "00001"), 1),
        ("0001 00000001", ("00000", "00001", "00100"), 1),
        ("0001 00000001", ("00001",), 0),
        ("0001 00000001", ("00100",), 0),
        ("0001 00000011", ("00100",), 1),
    ):
        (kind,) = packet_info.classify("av1", b"", [unit(point, *extensions)])
        assert (kind.hidden, kind.several) == (pictures == 0, pictures == 2), (point, extensions)
        assert kind.random_access == (pictures > 0)


def test_vp9_headers() -> None:
    """VP9 specification 6.2: what decides are the frame and the next one."""

    def frame(bits: str) -> memoryview:
        bits = bits.replace(" ", "").ljust(40, "0")
        return memoryview(bytes(int(bits[n : n + 8], 2) for n in range(0, 40, 8)))

    key, key3 = frame("10 00 0 0 1 0"), frame("10 11 0 0 0 1 0")
    none, none3 = frame("10 00 0 1 1 0 00 00000000"), frame("10 11 0 0 1 1 0 00 00000000")
    robust, robust3 = frame("10 00 0 1 1 1 00000000"), frame("10 11 0 0 1 1 1 00000000")
    last, last_robust = frame("10 00 0 1 1 0 00 00000001"), frame("10 00 0 1 1 1 00000001")
    hidden, shows = frame("10 00 0 1 0 1 0 00000000"), frame("10 00 1 000")
    superframe = memoryview(bytes(robust) + bytes([0b11000000]))
    for parts, several, none_shown in (
        ((hidden, last), False, False), ((hidden, shows), False, False), ((last, shows), True, False),
        ((hidden, last, last), True, False), ((hidden, hidden), False, True), ((key3, none3), True, False),
    ):  # fmt: skip
        marker = bytes([0b110_00_000 | len(parts) - 1])
        index = marker + bytes(map(len, parts)) + marker
        (kind,) = packet_info.classify("vp9", b"", [memoryview(b"".join(map(bytes, parts)) + index)])
        assert (kind.several, kind.hidden) == (several, none_shown)
    for packet in (none, none3, robust, robust3):
        for behind in (key, key3, robust, robust3, last_robust, hidden, superframe):
            assert packet_info.classify("vp9", b"", [packet, behind])[0].disposable
        for behind in (none, none3, last, shows, memoryview(b"")):
            assert not packet_info.classify("vp9", b"", [packet, behind])[0].disposable
        assert not packet_info.classify("vp9", b"", [packet])[0].disposable
    for packet in (key, key3, last, last_robust, hidden, shows, superframe, robust[:2]):
        assert not packet_info.classify("vp9", b"", [packet, key])[0].disposable


def _stsd(box: bytes, payload: bytes) -> bytes:
    return visual_sample_description(b"xxxx", full_box(box, payload), width=64, height=64)


CODECS = dict.fromkeys(("mpeg4", "mjpeg", "vp8", "vp9", "av1"), b"")


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(0, 3), st.data())
def test_any_bytes_are_classified(packets: list[bytes], length_size: int, data: st.DataObject) -> None:
    fixed = [data.draw(st.binary(min_size=max(0, len(p) - 8), max_size=len(p) + 8)) for p in packets[:1]]
    stsds = {
        "h264": _stsd(b"avcC", bytes([length_size] * 30)),
        "hevc": _stsd(b"hvcC", bytes([length_size] * 30)),
        **CODECS,
    }
    views = [memoryview(p) for p in [*packets, *fixed]]
    for codec, stsd in stsds.items():
        kinds = packet_info.classify(codec, stsd, views)
        assert len(kinds) == len(views)
        for kind, view in zip(kinds, views, strict=True):
            if not view and codec != "mjpeg":
                assert not kind.random_access
                assert not kind.disposable


@pytest.mark.parametrize("name", ["h264", "hevc", "vp8", "vp9", "av1", "mpeg4"])
def test_damaged_packets_are_classified(name: str, tmp_path: Path) -> None:
    """Cut and flipped real packets: nothing raises, and nothing runs past an end."""
    clip = stored(name, tmp_path)
    rng = np.random.default_rng(0)
    for packet in packets_of(clip)[:8]:
        for cut in (*range(12), len(packet) // 2):
            packet_info.classify(clip.codec, clip.stsd, [memoryview(bytes(packet)[:cut])])
        for _ in range(50):
            damaged = bytearray(packet)
            for _ in range(3):
                damaged[int(rng.integers(0, min(len(damaged), 40)))] = int(rng.integers(0, 256))
            packet_info.classify(clip.codec, clip.stsd, [memoryview(bytes(damaged))])


@given(st.sampled_from(["h264", "hevc", "mpeg4", "vp9", "theora", ""]), st.binary(max_size=200))
def test_any_sample_description(codec: str, stsd: bytes) -> None:
    with contextlib.suppress(ValueError):
        packet_info.classifier(codec, stsd)(memoryview(b"\0\0\0\1\x65"))
