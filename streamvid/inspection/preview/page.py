"""Strips, histograms and tables as HTML. Text of a dataset is escaped, and a page can load nothing: a
Content-Security-Policy allows only its own style and script, by their SHA-256, and inline pictures."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from streamvid.errors import InputError, StreamvidError
from streamvid.inspection.preview.pictures import Picture, Strip
from streamvid.storage import filesystem
from streamvid.storage.url import redact
from streamvid.text import displayable, format_count

_MOST: Final = 2000
"""Characters of a title or cause."""
GENERATOR: Final = '<meta name="generator" content="streamvid preview">'
"""The mark by which an earlier page of streamvid is recognised, which may be replaced."""
_HEAD: Final = 4096
"""First bytes of a page, which contain it."""


def page(title: str, body: str, data: str = "") -> str:
    """A whole page.

    Args:
        title: the title as text.
        body: the body as HTML.
        data: JSON for the page's script; "": no script.
    """
    style, script = asset("preview.css"), asset("preview.js") if data else ""
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_hash(style)}; script-src " + (_hash(script) if script else "'none'")
    )
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        GENERATOR,
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">',
        f'<link rel="icon" href="data:,">\n<title>{escaped(title)}</title>',
        f'<style>{style}</style>\n</head>\n<body class="streamvid">\n{body}',
    ]
    if data:
        # Within a script element, "<" could begin "</script" or "<!--"; the JSON stays the same.
        inert = data.replace("<", "\\u003c")
        lines += [f'<script type="application/json" id="data">{inert}</script>', f"<script>{script}</script>"]
    return "\n".join([*lines, "</body>\n</html>\n"])


def strip_html(strip: Strip) -> str:
    """A clip: its title, facts, frames and metadata."""
    parts = [f"<h3><bdi>{escaped(strip.title)}</bdi></h3>"]
    if strip.facts:
        facts = " · ".join(f"<bdi>{escaped(fact)}</bdi>" for fact in strip.facts)
        parts.append(f'<p class="facts">{facts}</p>')
    if strip.bad:
        parts.append(f'<p class="bad"><strong>bad clip:</strong> <bdi>{escaped(strip.bad)}</bdi></p>')
    if strip.pictures:
        parts += ['<ol class="strip">', *map(_picture, strip.pictures), "</ol>"]
    if strip.positions > len(strip.pictures) > 0:
        parts.append(f'<p class="facts">{len(strip.pictures)} of {format_count(strip.positions, "frame")}</p>')
    if strip.fields:
        parts.append(_fields(strip.fields))
    if strip.more_fields:
        parts.append(f"<details><summary>all columns</summary>{_fields(strip.more_fields)}</details>")
    return "".join(parts)


def lines_html(lines: Iterable[str]) -> str:
    """Lines of text as paragraphs."""
    return "\n".join(f'<p class="note"><bdi>{escaped(line)}</bdi></p>' for line in lines)


def asset(name: str) -> str:
    """A file of this package."""
    return files("streamvid.inspection.preview").joinpath(name).read_text(encoding="utf-8")


def write_page(path: str, html: str) -> int:
    """Write a page to a file or URL, atomically; returns its size in bytes. Errors as in `check_target`."""
    data = html.encode("utf-8", errors="replace")
    filesystem.write_bytes(path, data)
    return len(data)


def check_target(path: str) -> None:
    """Check that a page may be written to a path.

    Raises:
        InputError: the path exists, and is no page of streamvid.
        DatasetError: the storage cannot tell.
    """
    if not filesystem.exists(path):
        return
    try:
        ours = GENERATOR.encode() in filesystem.read_bytes(path)[:_HEAD]
    except StreamvidError:  # it is a folder or a device, or far larger than a page
        ours = False
    if not ours:
        raise InputError(f"{redact(path)} is there, and is no page of streamvid: name another file")


def _hash(text: str) -> str:
    """The hash of an inline style or script for a Content-Security-Policy (CSP Level 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def escaped(text: str) -> str:
    """Text of a dataset as HTML, also for attributes in quotes."""
    return escape(displayable(text, _MOST))


def _picture(picture: Picture) -> str:
    """A frame with its time below; the style darkens padding."""
    time = "black" if picture.seconds is None else f"{picture.seconds:.2f} s"
    kind, words, note = (
        ("", time, "") if picture.real else (' class="padding"', f"{time}, padding", "<span>padding</span>")
    )
    return (
        f'<li{kind}><figure><img src="{picture.uri}" width="{picture.width}" height="{picture.height}" '
        f'alt="frame: {words}" loading="lazy"><figcaption>{time} {note}</figcaption></figure></li>'
    )


def _fields(fields: Sequence[tuple[str, str]]) -> str:
    pairs = (f"<div><dt><bdi>{escaped(k)}</bdi></dt><dd><bdi>{escaped(v)}</bdi></dd></div>" for k, v in fields)
    return f"<dl>{''.join(pairs)}</dl>"
