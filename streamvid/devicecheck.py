"""Before a run: can this GPU decode these clips, and will it do so rightly?"""

from __future__ import annotations

from streamvid.dataset import Dataset
from streamvid.index import Int64
from streamvid.samples import OpenShards


def check_decodable(dataset: Dataset, rows: Int64, *, device_id: int, open_shards: OpenShards) -> None:
    """Raise InputError if some of the clips cannot be decoded on the GPU."""
