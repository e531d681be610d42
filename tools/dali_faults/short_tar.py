"""`fn.readers.webdataset` kills the process where a tar is shorter than its index says.

A shard whose copy broke off within the last sample is enough. With `dont_use_mmap=True` the same reader raises a
RuntimeError, and so it does where more is missing; here, with mmap, the default, it reads behind the file's end:
SIGSEGV.

Needs: nvidia-dali, numpy; no GPU.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

READ = """
import sys
from nvidia.dali import fn, pipeline_def
@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def graph():
    return fn.readers.webdataset(
        paths=[sys.argv[1]], index_paths=[sys.argv[2]], ext=["bin"], missing_component_behavior="error",
        dont_use_mmap=sys.argv[3] == "no-mmap",
    )
pipe = graph()
pipe.build()
try:
    for _ in range(4):
        (out,) = pipe.run()
        print("read", len(out.at(0)), "bytes, the sum is", int(out.as_array().astype(int).sum()))
except RuntimeError as error:
    sys.exit("RuntimeError")
"""


def main():
    with tempfile.TemporaryDirectory() as name:
        tar, index = Path(name) / "shard.tar", Path(name) / "shard.idx"
        size = 4 << 20
        with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as archive:
            members = []
            for number in range(4):
                info = tarfile.TarInfo(f"sample{number}.bin")
                info.size = size
                members.append(f"bin {archive.offset + 512} {size} {info.name}")
                archive.addfile(info, io.BytesIO(b"\1" * size))
        index.write_text("v1.2 4\n" + "".join(f"{line}\n" for line in members))
        ends = {}
        for cut in (False, True):
            if cut:
                with tar.open("r+b") as file:
                    file.truncate(4 * size)
            for how in ("mmap", "no-mmap"):
                command = [sys.executable, "-c", READ, str(tar), str(index), how]
                ends[cut, how] = subprocess.run(command, capture_output=True, text=True, timeout=100).returncode
                what = "a tar without its end" if cut else "the whole tar"
                print(f"{what}, {how}: the process ends with {ends[cut, how]}")
    print("expected: 0 for the whole tar, a RuntimeError (1) for the one without its end")
    if ends[False, "mmap"] != 0:
        print("cannot run here")
        return 2
    shown = ends[True, "mmap"] < 0
    print("fault shown" if shown else "not shown")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
