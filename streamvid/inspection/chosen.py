"""Which clips `verify` checks, where it is not all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from streamvid.checks import is_integer
from streamvid.dataset.manifest import Manifest
from streamvid.errors import InputError
from streamvid.loader.quarantine import entries, of_shard

Rows = list[tuple[int, ...]]
"""For each shard the numbers of clips in it, rising."""


def sampled(manifest: Manifest, share: float, seed: int) -> Rows:
    """The share of all clips, rounded up, at random; the same for the same seed."""
    count = math.ceil(manifest.clips * share)
    chosen = np.sort(np.random.default_rng(seed).choice(manifest.clips, count, replace=False, shuffle=False))
    ends = np.cumsum([entry.clips for entry in manifest.shards])
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1])) if len(ends) else []
    return [
        tuple((part - (end - entry.clips)).tolist())
        for part, end, entry in zip(parts, ends, manifest.shards, strict=True)
    ]


def quarantined(manifest: Manifest, file: Path) -> Rows:
    """The clips that a file of a quarantine names, or all files of its folder; lines of other datasets are left out.

    Raises:
        InputError: there is no such file, or it names no clip of the dataset.
    """
    if not file.exists():
        raise InputError(f"there is no {file}: name a file of a run's quarantine, such as quarantine/0.jsonl")
    named: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(file.glob("*.jsonl")) if file.is_dir() else [file]:
        for line in entries(one):
            if isinstance(line.get("packets_sha256"), str) and is_integer(line.get("number")):
                named.setdefault(line["packets_sha256"], []).append(line)
    rows = []
    for shard in manifest.shards:
        lines = (line for line in named.get(shard.packets_sha256, ()) if of_shard(line, shard))
        rows.append(tuple(sorted({line["number"] for line in lines if 0 <= line["number"] < shard.clips})))
    if not any(rows):
        raise InputError(f"{file} names no clip of this dataset: name the quarantine of a run over it")
    return rows
