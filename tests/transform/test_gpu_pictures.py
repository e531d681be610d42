"""Pictures on the GPU, without one: what a kernel makes of surfaces and cores of frames is what the CPU renders."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamvid.arrays import Bool
from streamvid.decode import gpu
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder
from streamvid.decode.nvdec import NvdecSessionPool
from streamvid.decode.nvdec_library import native_library
from streamvid.decode.nvdec_worker import NvdecWorker
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.transform import gpu_pictures
from streamvid.transform.crop_boxes import Scratch
from streamvid.transform.draw import DRAWS
from streamvid.transform.gpu_pictures import GpuPictures
from streamvid.transform.params import ClipTransform, batch_params
from streamvid.transform.render import CpuRenderer, DaliRenderer, GpuRenderer, make_renderer
from streamvid.transform.spec import Transform, Views, by_view
from streamvid.video.gpu_support import Route, Support
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from tests.support.clips import write
from tests.support.fake_gpu import Stream, put_in_place
from tests.support.reference import slice_of
from tools.clips import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPES = {
    "h264": Recipe(width=320, height=180, frames=24, gop=8, b_frames=2),
    "hevc": Recipe(codec="hevc", width=160, height=240, frames=12, gop=12, b_frames=2),
    "deep": Recipe(codec="hevc", width=320, height=184, frames=12, gop=6, pix_fmt="yuv420p10le"),
    "mjpeg": Recipe(codec="mjpeg", width=176, height=144, frames=8, gop=1),
}
ROTATIONS = {"h264": 0, "hevc": 90, "deep": 540, "mjpeg": 270}


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> EncodedBatch:
    """Clips of several codecs, sizes and rotations: frames in a row, some twice, some in none, and black ones."""
    slices = []
    for name, recipe in RECIPES.items():
        folder = tmp_path_factory.mktemp(name)
        clip = store_clip(write(recipe, folder / f"source.{recipe.container}"), folder)
        slices += [replace(slice_of(clip, frames), name=name) for frames in ([0, 1, 2, 3, 4, 5], [2, 7])]
    count = len(slices)
    rotations = [ROTATIONS[one.name] for one in slices]
    gather = [[0, 1, 2, 3, 4, 5] if len(one.frames) == 6 else [1, 0, 0, 0, -1, -1] for one in slices]
    return EncodedBatch(
        slices=slices,
        clips=np.arange(count),
        epochs=np.zeros(count, dtype=np.int64),
        labels=np.arange(count),
        valid=np.ones(count, dtype=bool),
        mask=np.array(gather) >= 0,
        seconds=np.zeros((count, 6)),
        heights=np.array([one.height for one in slices]),
        widths=np.array([one.width for one in slices]),
        rotations=np.array(rotations),
        gather=np.array(gather),
        random=np.random.default_rng(3).random((count, 2 * DRAWS)),
        bytes_read=0,
        absent=np.full(count, -1),
    )


@pytest.fixture(params=["engine", "core"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that has an engine, or a spare core in its place."""
    put_in_place(monkeypatch)
    # Tensors of a GPU know streams.
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    with opened(monkeypatch, *((1, 0) if request.param == "engine" else (0, 1))) as made:
        yield made


@contextmanager
def opened(monkeypatch: pytest.MonkeyPatch, engines: int, cores: int) -> Iterator[GpuDecoder]:
    """A decoder with so many engines and spare cores."""

    def open_pool(device_id: int, *, threads: int) -> NvdecSessionPool:
        return NvdecSessionPool(device_id=device_id, engines=engines, cpu_workers=cores, library=native_library())

    monkeypatch.setattr(gpu, "open_session_pool", open_pool)
    decoder = GpuDecoder(device_id=0, threads=2, max_batch=8)
    yield decoder
    decoder.close()


def rendered(transform: Transform | Views, decoder: GpuDecoder, batch: EncodedBatch, on_cpu: Bool | None = None) -> Any:
    made = GpuRenderer(transform, decoder, on_cpu=on_cpu).render_sample(batch)
    return {name: tensor.cpu() for name, tensor in made.items()}


def assert_same(made: Any, expected: Any, transform: Transform | Views, *, most: float = 1.01) -> None:
    """Within a level, and nearly all the same: halves may be rounded either way."""
    assert set(made) == set(expected)
    for name, one in expected.items():
        assert made[name].dtype == one.dtype
        assert made[name].shape == one.shape
        view = by_view(transform).get(name)
        if view is None:
            assert torch.equal(made[name], one)
            continue
        level = 1.0 if view.dtype == "uint8" else 1 / 255 / min(view.mean_std[1])
        slack = {"uint8": 0, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[view.dtype]
        difference = (made[name].float() - one.float()).abs()
        assert difference.max() <= most * level + slack
        assert (difference > 0.1 * level + slack).float().mean() < 0.003


TRANSFORMS: dict[str, Transform | Views] = {
    "crop": Transform(crop=(40, 60), random_crop=True, horizontal_flip=0.5, layout="THWC", dtype="uint8"),
    "train": Transform(random_short_side=(64, 90), crop=56, horizontal_flip=0.5, mean=MEAN, std=STD, dtype="float16"),
    "boxes": Transform(random_resized_crop=(0.1, 1), crop=(48, 32), vertical_flip=0.5, layout="TCHW", dtype="bfloat16"),
    "up": Transform(resize=(200, 210), mean=0.5, std=0.25, color="bt2020"),
    "views": Views(
        {
            "a": Transform(random_short_side=(64, 90), crop=56, horizontal_flip=0.5, mean=MEAN, std=STD),
            "b": Transform(resize=(30, 40), layout="THWC", vertical_flip=0.5, dtype="uint8"),
        }
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_batch_is_that_of_the_cpu(name: str, decoder: GpuDecoder, batch: EncodedBatch) -> None:
    transform = TRANSFORMS[name]
    expected = CpuRenderer(transform, threads=2)._submit(batch).result().tensors
    assert_same(rendered(transform, decoder, batch), expected, transform)
    # Whoever decodes: some clips on the CPU, and all.
    assert_same(rendered(transform, decoder, batch, np.arange(8) % 3 == 0), expected, transform)
    assert_same(rendered(transform, decoder, batch, np.ones(8, dtype=bool)), expected, transform)


def test_what_dali_decodes_gets_there_too(
    decoder: GpuDecoder, batch: EncodedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own colours corrected, and in the other order; by more launches than one, as of very many pictures."""
    monkeypatch.setattr(gpu_pictures, "MOST_PICTURES", 5)
    monkeypatch.setattr(
        gpu, "decode_support", lambda codec, *given, native: Support(Route.DALI if codec == "h264" else Route.CPU)
    )
    seen: list[int] = []

    def decode(slices: Sequence[EncodedSlice]) -> list[torch.Tensor]:
        seen.append(len(slices))
        return [torch.from_numpy(decode_with_pyav(one, color="bt601")) for one in slices]

    monkeypatch.setattr(decoder, "_decode_by_dali", decode)
    turned = replace(batch, rotations=(batch.rotations + 450) % 720)
    for one in (batch, turned):
        for name in ("train", "views", "up"):
            transform = TRANSFORMS[name]
            expected = CpuRenderer(transform, threads=2)._submit(one).result().tensors
            made = rendered(transform, decoder, one)
            for view, options in by_view(transform).items():
                level = 1.0 if options.dtype == "uint8" else 1 / 255 / min(options.mean_std[1])
                assert (made[view].float() - expected[view].float()).abs().mean() < 1.5 * level
    assert seen == [2] * 6


def by_dali(transform: Transform | Views, batch: EncodedBatch) -> Any:
    """On the CPU, by DALI's graph."""
    spec = ClipTransform(transform, rotates=True, has_black_frames=True, mirrors=True)
    renderer = make_renderer(spec, device_id=None, threads=2, max_batch=len(batch.slices))
    assert isinstance(renderer, DaliRenderer)
    pending = renderer._submit(batch)
    (_, tensors), *_ = renderer._pipeline.run(iter([pending.result()]))
    made = {name: one.clone() for name, one in tensors.items()}
    renderer.close()
    return made


def test_linear_changes_of_colours_are_dalis(decoder: GpuDecoder, batch: EncodedBatch) -> None:
    transform = Transform(
        random_short_side=(64, 90), crop=56, horizontal_flip=0.5, mean=MEAN, std=STD,
        brightness=0.4, contrast=0.5, saturation=0.6, hue=40, grayscale=0.3,
    )  # fmt: skip
    expected = by_dali(transform, batch)
    assert_same(rendered(transform, decoder, batch), expected, transform, most=4)
    assert_same(rendered(transform, decoder, batch, np.ones(8, dtype=bool)), expected, transform, most=4)


@pytest.mark.parametrize("decoder", ["engine"], indirect=True)
@pytest.mark.parametrize("clips", [1, 16, 100])
def test_the_next_batch_is_queued_while_the_engines_are_at_this_one(
    clips: int, decoder: GpuDecoder, batch: EncodedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large batches are, and though the next was not read yet when this one was begun."""
    rows = np.ones(clips, dtype=np.int64)
    arrays = {name: value[rows] for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    large = replace(batch, slices=[batch.slices[1]] * clips, **arrays)
    blocked, asked, begun = threading.Event(), count(), threading.Semaphore(0)
    decode = NvdecWorker._decode
    monkeypatch.setattr(NvdecWorker, "_decode", lambda worker, job: (blocked.wait(60), decode(worker, job)))

    class Source:
        left = 2

        def ready(self) -> bool:
            return next(asked) > 3

        def __next__(self) -> EncodedBatch:
            if not self.left:
                raise StopIteration
            self.left -= 1
            return large

    renderer: Any = GpuRenderer(Transform(resize=8, crop=8), decoder, on_cpu=None)
    submit = renderer._submit
    monkeypatch.setattr(renderer, "_submit", lambda one, **more: (submit(one, **more), begun.release())[0])
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.extend(renderer.run(Source(), iter)), daemon=True)
    thread.start()
    try:
        assert all(begun.acquire(timeout=120) for _ in range(2))
        assert not made
    finally:
        blocked.set()
    thread.join(60)
    assert [len(one.tensors["video"]) for one in made] == [clips] * 2


@pytest.mark.parametrize("decoder", ["engine"], indirect=True)
@pytest.mark.parametrize("final", [True, False])
def test_a_batch_is_done_when_its_jobs_are(
    final: bool, decoder: GpuDecoder, batch: EncodedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = threading.Event()
    decode = NvdecWorker._decode
    monkeypatch.setattr(NvdecWorker, "_decode", lambda worker, job: (blocked.wait(60), decode(worker, job)))
    slices = [one for one in batch.slices if one.name == "h264"]
    pending: Any
    if final:
        writes = GpuPictures(
            Transform(resize=8), batch, batch_params(Transform(resize=8), batch), stream=Stream(0), scratch=Scratch(),
            final=True,
        )  # fmt: skip
        pending = decoder.write(slices, writes, color="auto")
    else:
        pending = decoder.submit(slices, color="auto")
    assert not pending.done()
    blocked.set()
    pending.result()
    assert pending.done()


@pytest.mark.parametrize("decoder", ["engine"], indirect=True)
@pytest.mark.parametrize("final", [True, False])
def test_the_queue_knows_how_many_batches_wait_for_the_loop(
    final: bool, decoder: GpuDecoder, batch: EncodedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform, told, waits = Transform(resize=40, crop=32), [0], []
    assert decoder.sessions is not None
    monkeypatch.setattr(decoder.sessions, "waiting", lambda change: told.append(told[-1] + change))
    renderer: Any = GpuRenderer(transform, decoder, on_cpu=None)
    if not final:
        renderer = DaliRenderer(
            ClipTransform(transform, rotates=True, has_black_frames=True), decoder, threads=1, max_batch=8
        )
        monkeypatch.setattr(renderer._pipeline, "run", lambda made: ((one.encoded, {}) for one in made))

    def all_ahead(items: Iterator[Any]) -> Iterator[Any]:
        return iter(list(items))

    for _ in renderer.run(Ready([batch] * 3), all_ahead):
        waits.append(told[-1])
    assert max(told) == 3
    assert waits == [2, 1, 0]


class Ready:
    """Batches that are there at once."""

    def __init__(self, batches: list[EncodedBatch]) -> None:
        self._batches = iter(batches)

    def __next__(self) -> EncodedBatch:
        return next(self._batches)

    def ready(self) -> bool:
        return True


def test_what_is_left_to_dali_gets_frames_of_the_crops_size(decoder: GpuDecoder, batch: EncodedBatch) -> None:
    transform = Transform(random_short_side=(64, 90), crop=56, horizontal_flip=0.5, blur=0.5, rotate=20)
    spec = ClipTransform(transform, rotates=True, has_black_frames=True, mirrors=True)
    on_cpu = make_renderer(spec, device_id=None, threads=2, max_batch=8)
    assert isinstance(on_cpu, DaliRenderer)
    expected = on_cpu._submit(batch).result().frames
    on_cpu.close()
    begin = partial(DaliRenderer, spec, decoder, threads=2, max_batch=8)
    for left in (None, np.arange(8) % 2 == 0):
        renderer: Any = begin(on_cpu=left)
        made: Sequence[Any] = renderer._submit(batch).result().frames
        for one, other in zip(made[0], expected[0], strict=True):
            difference = np.abs(one.cpu().numpy().astype(int) - other)
            assert difference.max() <= 1
            assert (difference > 0).mean() < 0.003


def test_what_the_kernel_does_not_do_is_left_to_dali(
    decoder: GpuDecoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from streamvid.transform import render

    monkeypatch.setattr(render, "GpuDecoder", lambda **options: decoder)
    monkeypatch.setattr(render, "DaliPipeline", lambda *given, **options: options)
    for more, crop_resized in (
        ({"blur": 0.5}, True), ({"erase": 0.5}, True), ({"rotate": 5}, True),
        ({"shear": 5}, True), ({"dali": lambda frames: frames}, True),
        ({"interpolation": "bicubic"}, False), ({"resize_in": "rgb"}, False), ({"color": "bt601"}, False),
    ):  # fmt: skip
        options: dict[str, Any] = {"resize": 64, "crop": 56, **more}
        spec = ClipTransform(Transform(**options), rotates=False, has_black_frames=False)
        renderer: Any = make_renderer(spec, device_id=0, threads=2, max_batch=8)
        assert isinstance(renderer, DaliRenderer)
        assert renderer._pipeline["crop_resized"] is crop_resized
    spec = ClipTransform(Transform(resize=64, crop=56, hue=20), rotates=False, has_black_frames=False)
    assert isinstance(make_renderer(spec, device_id=0, threads=2, max_batch=8), GpuRenderer)
