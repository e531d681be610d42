"""The findings of `streamvid doctor`; those on a real GPU are in tests/gpu/test_doctor.py."""

from __future__ import annotations

import re
from collections import namedtuple
from pathlib import Path

import pytest
import torch

import streamvid as sv
from streamvid.decode.nvdec_library import Caps
from streamvid.errors import InputError
from streamvid.inspection import doctor
from streamvid.inspection.doctor import TESTED, TESTED_PYTHONS, Finding, examine
from tests.support.packed import edit_json, make_videos, pack_recipes
from tools.clips import Recipe

Usage = namedtuple("Usage", "total used free")


def finding(what: str, found: list[Finding]) -> Finding:
    (one,) = [row for row in found if row.what == what]
    return one


def test_versions_are_those_that_ci_installs() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", Path("constraints.txt").read_text(), re.MULTILINE))
    assert {name: pins[name] for name in TESTED} == TESTED
    least = re.search(r'requires-python = ">=3\.(\d+)"', Path("pyproject.toml").read_text())
    assert least is not None
    assert TESTED_PYTHONS[0] == (3, int(least[1]))


def test_a_package_that_is_missing_or_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("s3fs", "av"):
            raise doctor.metadata.PackageNotFoundError(name)
        return "0.1+cpu" if name == "torch" else TESTED[name]

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = list(examine())
    assert finding("av", found) == Finding("av", "not installed", "problem", "pip install av")
    assert finding("s3fs", found) == Finding("s3fs", "not installed", "note", "pip install s3fs, for S3")
    assert finding("torch", found) == Finding("torch", "0.1", "note", f"tested with {TESTED['torch']}")
    assert finding("numpy", found).state == "ok"


@pytest.mark.parametrize("built", [True, False])
def test_whether_the_native_part_was_built(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.render, "compiled", lambda: print if built else None)
    found = finding("native part", list(examine()))
    assert (found.found, found.state) == (("built", "ok") if built else ("not built", "note"))
    assert ("C compiler" in found.remedy) != built
    monkeypatch.setattr(doctor.native_decoder, "compiled", lambda: print if built else None)
    found = finding("native part, FFmpeg", list(examine()))
    assert (found.found, found.state) == (("built", "ok") if built else ("not used", "note"))
    assert ("wait for each other" in found.remedy) != built
    monkeypatch.setattr(doctor, "built_modules", lambda: [Path("nvdec.so")] if built else [])
    found = finding("native part, NVDEC", list(examine()))
    assert (found.found, found.state) == (("built", "ok") if built else ("not built", "note"))
    assert ("PyNvVideoCodec feeds NVDEC" in found.remedy) != built


def test_a_gpu_whose_run_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver beside a torch for the CPU, then one whose containers lack NVDEC."""
    monkeypatch.setattr(doctor, "_driver_version", lambda: "580.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    rows = list(doctor._gpu())
    assert rows[-1].state == "problem"
    assert "build for the CPU" in rows[-1].found
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    def load() -> None:
        raise InputError("set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video")

    monkeypatch.setattr(doctor, "load_nvdec", load)
    monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")
    *before, last = doctor._gpu()
    assert Finding("driver capabilities", "compute,utility") in before
    assert (last.what, last.state) == ("NVDEC", "problem")
    assert "compute,utility,video" in last.remedy


def test_decode_sessions_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_packages", lambda: ["PyNvVideoCodec"])
    (row,) = doctor._sessions()
    assert row.state == "problem"
    assert "pip install PyNvVideoCodec" in row.remedy
    assert doctor._codec("av1", Caps(False, 0, 0, 0, 0, 0)).state == "note"
    known = doctor._codec("h264", Caps(True, 7, 48, 16, 4096, 4096))
    assert known == Finding("NVDEC h264", "48x16 to 4096x4096, 7 engines")


def test_little_memory_files_and_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(64 << 20, 0, 10 << 30))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (1024, 1 << 20))
    monkeypatch.setattr(doctor, "find_cores", lambda: 1)
    found = list(examine(cache_dir=tmp_path / "not" / "yet"))
    assert "--shm-size" in finding("/dev/shm", found).remedy
    assert "ulimit -n 65536" in finding("open files", found).remedy
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (64, 64))
    assert "--ulimit nofile=65536" in finding("open files", list(examine())).remedy
    assert "cache_bytes" in finding("cache disk", found).remedy
    assert "10.7 GB free" in finding("cache disk", found).found
    assert finding("cores", found).state == "note"


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    row = finding("cache disk", list(examine(cache_dir="/proc/no-cache")))
    assert (row.state, "cache_dir" in row.remedy) == ("problem", True)


def test_a_dataset_is_read(tmp_path: Path) -> None:
    dataset = pack_recipes({"a": Recipe(frames=5)}, tmp_path)
    found = list(examine(str(dataset)))
    assert "1 clip, " in finding("dataset", found).found
    assert "a second" in finding("its shards", found).found
    (dataset / "dataset.json").write_text("{")
    damaged = finding("dataset", list(examine(str(dataset))))
    assert damaged.state == "problem"
    assert "dataset.json" in damaged.remedy


def test_a_dataset_without_clips(tmp_path: Path) -> None:
    """Written by hand: packing makes none."""
    dataset = pack_recipes({"a": Recipe(frames=5)}, tmp_path)
    edit_json(dataset, shards=[], clips=0, frames=0, bytes=0, seconds=0.0)
    row = finding("dataset", list(examine(str(dataset)))[-1:])
    assert (row.state, "holds no clips: pack it again" in row.remedy) == ("problem", True)


def test_a_dataset_in_place_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shards have no tars."""
    sv.index(
        [make_videos(tmp_path / "videos", {"a": Recipe(frames=5)})], tmp_path / "indexed", progress=False, workers=1
    )
    found = list(examine(str(tmp_path / "indexed")))
    assert "a second" in finding("its files", found).found
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another user"))
    assert "--roots" in finding("dataset", list(examine(str(tmp_path / "indexed")))[-1:]).remedy
    assert finding("its files", list(examine(str(tmp_path / "indexed"), roots=[str(tmp_path / "videos")])))


def test_a_bucket_that_is_not_there_leaks_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASECRETKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-key")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    found = list(examine("http://user:hidden-password@127.0.0.1:9/dataset"))
    assert finding("dataset", found).state == "problem"
    shown = repr(found)
    assert not any(secret in shown for secret in ("hidden-password", "SECRETKEY", "very-secret"))


def test_one_broken_check_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("as in no library that we know")

    monkeypatch.setattr(doctor, "find_cores", broken)
    found = list(examine())
    assert finding("cores", found).state == "problem"
    assert "ZeroDivisionError" in finding("cores", found).found
    assert {"Python", "torch", "/dev/shm", "cache disk"} <= {row.what for row in found}
