"""Histograms of a dataset's columns, as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.columns import is_number
from streamvid.errors import StreamvidError
from streamvid.inspection.describe import Counts, frame_sizes, histogram
from streamvid.inspection.listing import SIZE
from streamvid.inspection.preview.table import GOP, read_column
from streamvid.text import displayable, format_bytes, format_count

_BARS: Final = 12
"""Most values of a column with a bar each; the others share one."""
_LOOKED_AT: Final = 1000
"""Clips by which it is decided whether a column of text has few values."""
_MORE: Final = 12
"""Histograms of metadata columns at most."""
_TITLES: Final = {
    "seconds": "Length in seconds",
    "fps": "Rate: frames per second",
    GOP: "GOP: packets per random access",
    SIZE: "File size",
    "codec": "Codec",
}
_LABEL, _BAR, _ROW, _WIDTH = 134, 125, 20, 340
"""Units of the SVG: room for labels, the longest bar, a row, all of it."""
_LETTERS: Final = 20


@dataclass(frozen=True)
class Chart:
    """Numbers of clips by the values of a column, or by intervals of values.

    Attributes:
        title: the column in words.
        bars: the values in words, in order.
        none: number of clips without a value.
    """

    title: str
    bars: Counts
    none: int = 0


def dataset_charts(dataset: ClipSource, rows: Int64 | None) -> list[Chart]:
    """The histograms of a dataset: length, frame size, rate, GOP, bytes, codec, labels, and metadata with few values or
    numbers.

    Args:
        rows: the rows that count; None for all.
    """
    taken = None if rows is None else pa.array(rows)
    charts: list[Chart] = []
    own = [name for name in dataset.columns.names if name not in dataset.columns.built_in]
    label = "class" if "class" in dataset.columns.names else "label"
    for name in ("seconds", None, "fps", GOP, SIZE, "codec", label, *own):
        if len(charts) == len(_TITLES) + 2 + _MORE:
            break
        if name is None:  # a column may have the name "": pandas writes its index so
            charts.append(Chart("Frame size", _most_frequent(frame_sizes(dataset.clips, rows))))
            continue
        try:
            array = read_column(dataset, name)
        except StreamvidError:  # the table shows the reason
            continue
        chart = _chart(_TITLES.get(name, name), array if taken is None else array.take(taken))
        if chart is not None:
            charts.append(chart)
    return charts


def _chart(title: str, array: pa.Array) -> Chart | None:
    """The histogram of a column; None for a column without values, with many texts, or with lists."""
    none = array.null_count
    if is_number(array):
        values = np.asarray(array.drop_null().to_numpy(zero_copy_only=False))
        finite = values[np.isfinite(values)]
        if len(finite) == 0:
            return None
        none += len(values) - len(finite)
        few = np.unique(finite[:_LOOKED_AT])
        if finite.dtype.kind == "i" and len(few) <= _BARS and int(finite.max()) - int(finite.min()) < _LOOKED_AT:
            each, counts = np.unique(finite, return_counts=True)
            if len(each) <= _BARS:
                return Chart(title, tuple(zip(map(str, each.tolist()), counts.tolist(), strict=True)), none)
        bars = histogram(finite.astype(np.float64))
        pairs = zip(bars.edges[:-1], bars.edges[1:], strict=True)
        text = (lambda edge: format_bytes(round(edge))) if title == _TITLES[SIZE] else _short
        names = [f"{text(low)} to {text(high)}" if low < high else text(low) for low, high in pairs]
        return Chart(title, tuple(zip(names, bars.counts, strict=True)), none)
    if pa.types.is_boolean(array.type) or pa.types.is_large_string(array.type):
        if len(pc.unique(array.slice(0, _LOOKED_AT))) > max(_BARS, min(_LOOKED_AT, len(array)) // 10):
            return None
        found = pc.value_counts(array.drop_null()).to_pylist()
        counted = sorted(
            ((str(entry["values"]), entry["counts"]) for entry in found), key=lambda pair: (-pair[1], pair[0])
        )
        if not counted or counted[0][1] == 1 < len(counted):
            return None
        return Chart(title, _most_frequent(counted), none)
    return None


def _short(number: float) -> str:
    return f"{number:,.0f}" if 10_000 <= abs(number) < 1e9 else f"{number:.4g}"


def _most_frequent(counts: Sequence[tuple[str, int]]) -> Counts:
    if len(counts) <= _BARS:
        return tuple(counts)
    rest = counts[_BARS - 1 :]
    return (*counts[: _BARS - 1], (format_count(len(rest), "other"), sum(count for _, count in rest)))


def svg(chart: Chart) -> str:
    """The chart as an inline SVG with its title; its colours are from the page's style."""
    bars = [*chart.bars, *([("no value", chart.none)] if chart.none else [])]
    most = max((count for _, count in bars), default=1)
    title = displayable(chart.title, 60)
    words = (f"{displayable(label, _LETTERS)}, {format_count(count, 'clip')}" for label, count in bars)
    lines = [
        f'<figure class="chart"><figcaption><bdi>{escape(title)}</bdi></figcaption>',
        f'<svg role="img" viewBox="0 0 {_WIDTH} {_ROW * len(bars)}" width="{_WIDTH}" height="{_ROW * len(bars)}">',
        f"<title>{escape(title)}: {escape('; '.join(words))}</title>",
        *_rows(bars, most),
        "</svg></figure>",
    ]
    return "\n".join(lines)


def _rows(bars: Iterable[tuple[str, int]], most: int) -> Iterable[str]:
    for n, (label, count) in enumerate(bars):
        middle = n * _ROW + _ROW // 2
        width = max(1.0, _BAR * count / most) if count else 0.0
        yield (
            f"<g><title>{escape(displayable(label, 300))}: {format_count(count, 'clip')}</title>"
            f'<text x="{_LABEL}" y="{middle}" class="label">{escape(displayable(label, _LETTERS))}</text>'
            f'<rect x="{_LABEL + 8}" y="{middle - 7}" width="{width:.1f}" height="14"/>'
            f'<text x="{_LABEL + 14 + width:.1f}" y="{middle}">{count:,}</text></g>'
        )
