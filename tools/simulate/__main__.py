"""`python -m tools.simulate`: live many lives; `--seed 123` replays one, with what happens in it."""

from __future__ import annotations

import argparse
import time
import traceback

from tools.simulate.life import live, world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one life, line by line")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument(
        "--reads", action=argparse.BooleanOptionalAction, help="only lives whose ranks read, or only others"
    )
    options = parser.parse_args()
    with world() as disks:
        if options.seed is not None:
            print(f"digest {live(options.seed, disks, print, reads=options.reads):08x}")
            return 0
        failed, began = [], time.process_time()
        for seed in range(options.first, options.first + options.lives):
            try:
                live(seed, disks, reads=options.reads)
            except BaseException as error:
                failed.append(seed)
                print(f"--seed {seed}: {type(error).__name__}: {error}", flush=True)
                if len(failed) <= 3:
                    traceback.print_exc()
        seconds = time.process_time() - began
        print(f"{options.lives} lives, {options.lives / seconds:.1f} a core-second, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
