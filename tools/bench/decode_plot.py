"""What `tools.bench.decode` found, as a picture: where the time of a batch goes, before and now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_BATCH: Final = 64
_COLOURS: Final = {"the chip decodes": "#4c72b0", "opening decoders": "#c44e52", "all else": "#dd8452"}


def shares(row: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Seconds of a batch of stock DALI and of streamvid: the chip's limit, opening decoders, and what is left.

    What stock needs for streams of a single picture is taken for opening; it can overlap with decoding, so it is no
    more than what is left beside the limit.
    """
    limit = row["limit_s"]
    opening = min(row["opening_s"], max(0.0, row["stock_s"] - limit))
    return {
        "stock DALI": (limit, opening, max(0.0, row["stock_s"] - limit - opening)),
        "streamvid": (min(limit, row["streamvid_s"]), 0.0, max(0.0, row["streamvid_s"] - limit)),
    }


def plot(rows: Sequence[dict[str, Any]], path: Path, machine: str) -> None:
    """A panel for each kind of clips, two bars for each GOP and stride."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "streamvid"  # the same figures give the same file
    shown = [row for row in rows if row["row"] == "windows" and row["batch"] == _BATCH and not row["error"]]
    kinds = list(dict.fromkeys(row["kind"] for row in shown))
    most_bars = max(sum(row["kind"] == kind for row in shown) for kind in kinds)
    columns, lines = min(2, len(kinds)), -(-len(kinds) // 2)
    figure, panels = plt.subplots(
        lines,
        columns,
        figsize=(6.5 * columns, (0.5 * most_bars + 0.7) * lines + 1),
        squeeze=False,
        layout="constrained",
    )
    for axes in panels.flat[len(kinds) :]:
        axes.set_axis_off()
    for axes, kind in zip(panels.flat, kinds, strict=False):
        of_kind = sorted((row for row in shown if row["kind"] == kind), key=lambda row: (row["gop"], row["stride"]))
        most = max(row["stock_s"] for row in of_kind)
        labels = []
        for place, row in enumerate(of_kind):
            for shift, (who, parts) in zip((-0.2, 0.2), shares(row).items(), strict=True):
                left = 0.0
                for (what, colour), width in zip(_COLOURS.items(), parts, strict=True):
                    axes.barh(place + shift, width, 0.36, left=left, color=colour, label=what)
                    left += width
                axes.text(left + most / 100, place + shift, f"{who} {left:.2f} s", va="center", fontsize=7)
            labels.append(f"GOP {row['gop']}, stride {row['stride']}")
        axes.set_yticks(range(len(of_kind)), labels, fontsize=8)
        axes.set_xlim(0, 1.25 * most)
        axes.tick_params(axis="x", labelsize=8)
        axes.invert_yaxis()
        axes.set_title(kind, fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(f"seconds for a batch of {_BATCH} windows of 16 frames; {machine}", fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
    figure.legend(handles, list(_COLOURS), fontsize=8, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
