"""Makes the clips of the benchmarks of a GPU beforehand, where encoding costs nobody the GPU's time.

python -m tools.bench.make_clips DIR        # some 16 MB; then python -m tools.bench --clips DIR --json FILE
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.bench import decode, decode_cases, train_step


def main() -> int:
    """The program. What is there already stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder: Path = parser.parse_args().folder
    decode_cases.make_clips(decode.all_cases(), folder)
    for kind in train_step.CLIPS:
        train_step.clip_files(folder, kind, train_step.QUICK.made)
    files = [path for path in folder.iterdir() if path.is_file()]
    print(f"{len(files)} clips, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
