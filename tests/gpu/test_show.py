"""`show` of batches on a GPU."""

from __future__ import annotations

import pytest
import torch

import streamvid as sv


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
def test_a_batch_on_the_gpu_looks_as_on_the_cpu(dtype: torch.dtype) -> None:
    video = torch.randint(0, 256, (3, 3, 20, 32, 48), dtype=torch.uint8)
    batch = {
        "video": video if dtype == torch.uint8 else (video / 50 - 2).to(dtype),
        "mask": torch.arange(60).reshape(3, 20) % 7 > 0,
        "pts": torch.arange(60.0).reshape(3, 20),
        "label": torch.tensor([0, -100, 7]),
        "clip": torch.arange(3),
    }
    here, there = sv.show(batch), sv.show({name: value.cuda() for name, value in batch.items()})
    assert here == there
    assert here._repr_html_() == there._repr_html_()
