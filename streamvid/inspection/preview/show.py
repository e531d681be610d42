"""`show`: a batch as a picture in a notebook, or as a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streamvid.checks import integer, suggest_keywords
from streamvid.errors import InputError
from streamvid.fetch.encoded_batch import NO_LABEL
from streamvid.inspection.preview.page import asset, check_target, lines_html, page, strip_html, write_page
from streamvid.inspection.preview.pictures import (
    Scale,
    Strip,
    frame_of,
    guess_layout,
    guess_scale,
    make_picture,
    scale_of,
    shown_positions,
)
from streamvid.storage.url import given_path
from streamvid.text import displayable
from streamvid.transform.spec import ONLY_VIEW, TAKEN, Layout, Transform, Views, by_view

if TYPE_CHECKING:
    import torch

_TEXT: Final = 2000
"""Characters of a value of metadata."""


@dataclass(frozen=True)
class Shown:
    """The picture of a batch. A notebook displays it as a cell's value; `save` writes it as a page.

    Attributes:
        strips: one for each clip and view.
        notes: remarks on how values became colours, and on omissions.
    """

    strips: tuple[Strip, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Shown({len(self.strips)} strips; save('batch.html') writes them as a page)"

    def _repr_html_(self) -> str:
        """HTML for notebooks, without scripts or links, and with a style that applies only within it."""
        return f'<style>{asset("preview.css")}</style><div class="streamvid">{self._body()}</div>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as a page; an earlier page of streamvid is replaced.

        Raises:
            InputError: the path is another file.
            DatasetError: the page cannot be written.
        """
        check_target(path := given_path(path, "path"))
        write_page(path, page("streamvid batch", f"<main><h1>Batch</h1>{self._body()}</main>"))

    def _body(self) -> str:
        strips = (f'<article class="clip">{strip_html(strip)}</article>' for strip in self.strips)
        return "\n".join([lines_html(self.notes), *strips])


@suggest_keywords
def show(
    batch: Mapping[str, Any],
    *,
    transform: Transform | Views | Mapping[str, Transform] | None = None,
    clips: int = 16,
) -> Shown:
    """Show a batch of any loader, or a sample of a `ClipDataset`, as strips of frames with times, labels and metadata;
    padding is darkened. Only frames that are shown are copied from the GPU.

    Args:
        batch: the batch, a dict.
        transform: the loader's transform, whose layout and normalisation are undone. Without it, the layout is guessed
            from the shape; uint8, and floats from 0 to 1, are shown unchanged; other values are scaled, the smallest to
            black and the greatest to white.
        clips: most clips that are shown, each with up to 16 frames, evenly spaced.

    Raises:
        InputError: the batch has no frames in the layout of the transform, or in any layout.
    """
    integer(clips, "clips")
    if not isinstance(batch, Mapping):
        raise InputError(f"show takes a batch, the dict that a loader gives; it is {type(batch).__name__}")
    transforms = _transforms(transform, batch)
    videos = {name: _tensor(batch, name) for name in transforms}
    others = {name: value for name, value in batch.items() if name not in videos}
    if all(video.ndim == 4 for video in videos.values()):  # a sample
        others = {name: [value.tolist() if hasattr(value, "tolist") else value] for name, value in others.items()}
        videos = {name: video.unsqueeze(0) for name, video in videos.items()}
    count = min(clips, *map(len, videos.values()))
    shown = {name: video[:count] for name, video in videos.items()}
    cells = {name: _values(value, count) for name, value in others.items()}
    notes, views = [], []
    for name, video in shown.items():
        view = _view(video, transforms[name], next((len(mask) for mask in cells.get("mask", [])), None))
        notes.append(view.scale.words if len(videos) == 1 else f"{name}: {view.scale.words}")
        views.append((name if len(videos) > 1 else "", view))
    if count < len(next(iter(videos.values()))):
        notes.append(f"The first {count} of {len(next(iter(videos.values())))} clips.")
    strips = [_strip(view, cells, n, name) for n in range(count) for name, view in views]
    return Shown(tuple(strips), tuple(notes))


@dataclass(frozen=True)
class _View:
    """A view: frames [batch, …], with their layout and scale."""

    video: torch.Tensor
    layout: Layout
    scale: Scale


def _transforms(
    transform: Transform | Views | Mapping[str, Transform] | None, batch: Mapping[str, Any]
) -> Mapping[str, Transform | None]:
    """The transforms of the batch's views by name; None where they are unknown."""
    if isinstance(transform, Mapping):
        transform = Views(transform)
    if isinstance(transform, Transform | Views):
        return by_view(transform)
    if transform is not None:
        raise InputError(f"transform must be the loader's Transform, or a dict of them by name; it is {transform!r}")
    if ONLY_VIEW in batch:
        return {ONLY_VIEW: None}
    found = [name for name, value in batch.items() if name not in TAKEN and getattr(value, "ndim", 0) in (4, 5)]
    return dict.fromkeys(found or [ONLY_VIEW])


def _tensor(batch: Mapping[str, Any], name: str) -> torch.Tensor:
    import torch

    value = batch.get(name)
    try:
        tensor = value if torch.is_tensor(value) else torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.empty(0)
    if tensor.ndim not in (4, 5) or tensor.is_complex():
        raise InputError(f"the batch has no frames under {name!r}: it holds {', '.join(map(str, batch))[:300]}")
    return tensor


def _values(value: Any, count: int) -> list[Any]:
    """The first `count` values of a column of a batch, as Python objects; [] for a value that is not a column."""
    if hasattr(value, "tolist"):
        return list(value[:count].tolist()) if getattr(value, "ndim", 1) else []
    return list(value[:count]) if isinstance(value, list | tuple) else []


def _view(video: torch.Tensor, transform: Transform | None, frames: int | None) -> _View:
    if transform is None:
        return _View(video, guess_layout(video.shape[1:], frames), guess_scale(video))
    layout, sides = transform.layout, dict(zip(transform.layout, video.shape[1:], strict=True))
    if sides["C"] != 3 or frames not in (None, sides["T"]):
        raise InputError(f"frames of the shape {list(video.shape[1:])} are not in the transform's layout {layout}")
    return _View(video, layout, scale_of(transform))


def _strip(view: _View, cells: Mapping[str, list[Any]], n: int, name: str) -> Strip:
    """The strip of the batch's n-th clip."""

    def cell(column: str) -> Any:
        values = cells.get(column, [])
        return values[n] if n < len(values) else None

    count = view.video.shape[1 + view.layout.index("T")]
    seconds, mask = cell("pts") or [None] * count, cell("mask") or [True] * count
    pictures = tuple(
        make_picture(view.scale.rgb(frame_of(view.video[n], view.layout, t)), seconds[t], real=bool(mask[t]))
        for t in shown_positions(count).tolist()
    )
    label = cell("label")
    facts = [name] if name else []
    facts += [f"label {label}"] if label is not None and label != NO_LABEL else []
    facts += ["not valid: it fills the batch"] if cell("valid") is False else []
    fields = tuple(
        (column, displayable(str(cell(column)), _TEXT))
        for column in cells
        if column not in (*TAKEN, "video") and cell(column) is not None
    )
    row = cell("clip")
    title = cell("key") if cell("key") is not None else f"clip {n if row is None else row}"
    return Strip(str(title), pictures, count, tuple(facts), fields)
