"""`streamvid doctor`: checks this machine for everything that a training run needs, and proposes remedies."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np

from streamvid.color import render
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.revisions import dataset_path, read_manifest
from streamvid.decode.nvdec import decoder_caps, load_nvdec, missing_packages, open_session_pool
from streamvid.decode.nvdec_library import CODECS, Caps, built_modules, native_library
from streamvid.errors import InputError, StreamvidError
from streamvid.plan.world import find_cores
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.cache_dir import user_cache_dir
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.retry import Retry
from streamvid.storage.url import given_local_path, is_local, join, redact
from streamvid.text import format_bytes, format_count
from streamvid.video import native_decoder

State = Literal["ok", "note", "problem"]

TESTED_PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
TESTED: Final[Mapping[str, str]] = {
    "torch": "2.13.0",
    "nvidia-dali-cuda120": "2.4.0",
    "PyNvVideoCodec": "2.2.4",
    "av": "18.1.0",
    "numpy": "2.4.6",
    "pyarrow": "26.0.1",
    "fsspec": "2026.9.0",
    "s3fs": "2026.9.0",
}
"""Versions that CI tests: those of constraints.txt."""
_NEEDED_FOR: Final[Mapping[str, str]] = {"PyNvVideoCodec": "GPUs", "s3fs": "S3"}
_SHM_BYTES: Final = 1 << 30
_FILES: Final = 4096
_CACHE_BYTES: Final = 64 << 30
"""The loaders' default for `cache_bytes`."""
_PIECE: Final = 4 << 20
_PIECES: Final = 16
_ONCE: Final = Retry(0)
"""A storage that does not answer is a finding, which comes at once."""


@dataclass(frozen=True)
class Finding:
    """A row of the table.

    Attributes:
        what: the part of the machine that was examined.
        found: what was found.
        state: "ok"; "note": a run works, but slower or with fewer features; "problem": a run fails or is far slower.
        remedy: what to do; "" if nothing.
    """

    what: str
    found: str
    state: State = "ok"
    remedy: str = ""


def examine(
    dataset: str | None = None, *, cache_dir: str | os.PathLike[str] | None = None, roots: Sequence[str] = ()
) -> Iterator[Finding]:
    """Examine this machine; yields each finding as soon as it is made.

    Args:
        dataset: folder or URL of a dataset to read as well, with the credentials that a run would have.
        cache_dir, roots: as in `StreamLoader`.
    """
    given = None if cache_dir is None else given_local_path(cache_dir, "cache_dir")
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("Python", _python),
        ("packages", _packages),
        ("native part", _native),
        ("cores", _cores),
        ("GPU", _gpu),
        ("/dev/shm", _shared_memory),
        ("open files", _open_files),
        ("cache disk", lambda: _cache_disk(user_cache_dir() if given is None else Path(given))),
    ]
    if dataset is not None:
        checks.append(("dataset", lambda: _dataset(dataset, roots)))
    for what, check in checks:
        try:
            yield from check()
        except StreamvidError as error:
            yield Finding(what, "cannot be used", "problem", str(error))
        except Exception as error:  # any exception, because the other findings matter even more if something is broken
            yield Finding(what, f"cannot be examined: {type(error).__name__}: {error}"[:300], "problem")


def _finding(what: str, found: str, good: bool, otherwise: State, remedy: str) -> Finding:
    """A finding; with a state and a remedy if something is wrong."""
    return Finding(what, found) if good else Finding(what, found, otherwise, remedy)


def _python() -> Iterator[Finding]:
    tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED_PYTHONS)
    known = sys.version_info[:2] in TESTED_PYTHONS
    yield _finding("Python", platform.python_version(), known, "note", f"tested with {tested}")


def _packages() -> Iterator[Finding]:
    for name, tested in TESTED.items():
        use = _NEEDED_FOR.get(name)
        try:
            version = metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            yield Finding(name, "not installed", "note" if use else "problem",
                          f"pip install {name}" + (f", for {use}" if use else ""))  # fmt: skip
            continue
        yield _finding(name, version, version == tested, "note", f"tested with {tested}")


def _native() -> Iterator[Finding]:
    built = render.compiled() is not None
    remedy = "NumPy resizes and converts pictures on the CPU: install a C compiler, then streamvid again"
    yield _finding("native part", "built" if built else "not built", built, "note", remedy)
    built = native_decoder.compiled() is not None
    remedy = (
        "threads that decode on the CPU wait for each other: install a C compiler, the tested PyAV, streamvid again"
    )
    yield _finding("native part, FFmpeg", "built" if built else "not used", built, "note", remedy)
    built = bool(built_modules())
    remedy = "PyNvVideoCodec feeds NVDEC, at the cost of cores: install a C compiler, then streamvid again"
    yield _finding("native part, NVDEC", "built" if built else "not built", built, "note", remedy)


def _cores() -> Iterator[Finding]:
    cores = find_cores()
    remedy = "a core reads while another decodes: give the process two or more"
    yield _finding("cores", f"{cores} for this process", cores >= 2, "note", remedy)


def _gpu() -> Iterator[Finding]:
    import torch

    driver = _driver_version()
    if driver is None:
        yield Finding("GPU", "no NVIDIA driver", "note", "without a GPU the loaders decode on the CPU")
        return
    yield Finding("driver", driver)
    if torch.version.cuda is None:
        index = "a build for CUDA: see pytorch.org"
        yield Finding("torch's CUDA", "none: this torch is a build for the CPU", "problem", f"install {index}")
        return
    if not torch.cuda.is_available():
        remedy = "check nvidia-smi, CUDA_VISIBLE_DEVICES, and that the driver is new enough for this CUDA"
        yield Finding("torch's CUDA", f"{torch.version.cuda}, but it sees no GPU", "problem", remedy)
        return
    yield Finding("torch's CUDA", torch.version.cuda)
    for number in range(torch.cuda.device_count()):
        memory = format_bytes(torch.cuda.get_device_properties(number).total_memory)
        yield Finding(f"GPU {number}", f"{torch.cuda.get_device_name(number)}, {memory}")
    capabilities = os.environ.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities is not None:
        # The parts of the driver that the container runtime was told to mount. Some runtimes mount all of it in any
        # case.
        yield Finding("driver capabilities", capabilities)
    try:
        load_nvdec()
    except InputError as error:
        yield Finding("NVDEC", "the driver's library is missing", "problem", str(error))
        return
    yield from _sessions()
    import nvidia.dali

    yield Finding("DALI on the GPU", nvidia.dali.__version__)


def _sessions() -> Iterator[Finding]:
    """The codecs that NVDEC decodes, and whether decode sessions can be opened."""
    if missing := missing_packages():
        slower = "without it DALI decodes in its place, 3 to 48 times slower"
        yield Finding("decode sessions", f"{', '.join(missing)} not installed", "problem",
                      f"pip install {' '.join(missing)}: {slower}")  # fmt: skip
        return
    for codec in CODECS:
        try:
            yield _codec(codec.upper(), decoder_caps(0, codec))
        except (RuntimeError, AttributeError) as error:
            yield Finding(f"NVDEC {codec.upper()}", f"does not say ({error})", "note")
    pool = open_session_pool(0)
    if pool is None:
        yield Finding("decode sessions", "do not open", "problem", "the log above says why; Triton needs a C compiler")
    else:
        pool.close()
        by = "PyNvVideoCodec" if native_library() is None else "the native module"
        yield Finding("decode sessions", f"open, by {by}, with Triton")


def _codec(codec: str, caps: Caps) -> Finding:
    """NVDEC's capabilities for a codec at 8 bits and 4:2:0, in words."""
    if not caps.supported:
        return Finding(f"NVDEC {codec}", "no decoder", "note", "CPU cores decode it, or transcode it when packing")
    sizes = f"{caps.min_width}x{caps.min_height} to {caps.max_width}x{caps.max_height}"
    return Finding(f"NVDEC {codec}", f"{sizes}, {caps.engines} engines")


def _driver_version() -> str | None:
    """The NVIDIA driver's version, from its management library; None without a driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        version = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(version, len(version)) == 0:
            return version.value.decode(errors="replace")
    except (OSError, AttributeError):
        return None
    return None


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding("/dev/shm", "none", "problem", "GpuDataLoader's workers and NCCL need it: mount a tmpfs there")
        return
    total = shutil.disk_usage(folder).total
    remedy = (
        "workers send packets and NCCL buffers through it: docker run --shm-size=8g, or in Kubernetes an emptyDir with "
        "medium: Memory"
    )
    yield _finding("/dev/shm", format_bytes(total), total >= _SHM_BYTES, "problem", remedy)


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = f"ulimit -n {min(hard, 65536)}"
    if hard < _FILES:
        raised = "root raises the hard limit in limits.conf, or docker run --ulimit nofile=65536"
    remedy = f"shards, workers and sockets take some: {raised}"
    yield _finding("open files", f"{soft} at most", not 0 <= soft < _FILES, "note", remedy)


def _cache_disk(folder: Path) -> Iterator[Finding]:
    """The disk of the cache for shards of remote datasets."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            pass
    except OSError as error:
        yield Finding("cache disk", f"{folder}: not writable ({error.strerror})", "problem",
                      "give the loaders cache_dir, or set XDG_CACHE_HOME")  # fmt: skip
        return
    free = shutil.disk_usage(existing).free
    default = format_bytes(_CACHE_BYTES)
    remedy = f"for remote datasets: give the loaders cache_bytes below that (default {default}) or another cache_dir"
    yield _finding("cache disk", f"{folder}: {format_bytes(free)} free", free >= _CACHE_BYTES, "note", remedy)


def _dataset(path: str, roots: Sequence[str]) -> Iterator[Finding]:
    """Whether a dataset can be read, and how fast: the beginning of its largest shard, or file in place, in ranges."""
    started = time.perf_counter()
    manifest = read_manifest(dataset_path(path), retry_for=_ONCE)
    opened = time.perf_counter() - started
    yield Finding(
        "dataset", f"{redact(path)}: {format_count(manifest.clips, 'clip')}, opened in {1000 * opened:.0f} ms"
    )
    if manifest.roots or not manifest.clips:  # clips in place, possibly all of them; a dataset of none does not open
        source = Dataset.open(path, retry_for=_ONCE.seconds, roots=roots)
        row = int(np.argmax(source.clips.mp4_size))
        reader, what, url = source.reader, "its files", source.location(row)
        first, size = int(source.clips.mp4_offset[row]), int(source.clips.mp4_size[row])
    else:
        shard = max(manifest.shards, key=lambda entry: entry.bytes)
        reader, what, url = RangeReader(_ONCE), "its shards", join(path, shard.file("tar"))
        first, size = 0, shard.bytes
    edges = (first + np.linspace(0, min(size, _PIECES * _PIECE), _PIECES + 1).astype(np.int64)).tolist()
    ranges = [ByteRange(url, start, end) for start, end in pairwise(edges) if end > start]
    started = time.perf_counter()
    reader.read([ByteRange(url, first, first + 1)])
    latency = time.perf_counter() - started
    started = time.perf_counter()
    taken = sum(len(part) for part in reader.read(ranges))
    rate = taken / max(time.perf_counter() - started, 1e-9)
    where = "disk or page cache" if is_local(url) else "this connection"
    yield Finding(what, f"{format_bytes(round(rate))} a second from {where}; {1000 * latency:.0f} ms for a byte")
