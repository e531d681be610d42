"""`streamvid doctor` on a machine with a GPU that runs everything."""

from __future__ import annotations

from streamvid.inspection.doctor import examine


def test_what_this_gpu_has_is_found() -> None:
    found = {row.what: row for row in examine()}
    print(*found.values(), sep="\n")
    assert found["GPU 0"].found.startswith("NVIDIA")
    assert found["driver"].found[0].isdigit()
    assert found["NVDEC H264"].found.startswith("48x16 to 4096x4096"), found["NVDEC H264"]
    assert found["decode sessions"].found.startswith("open")
    assert found["DALI on the GPU"].state == "ok"
    # Of H100 and H200.
    assert found["NVDEC AV1"].state in ("ok", "note")
