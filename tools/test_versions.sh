#!/bin/bash
# The quick tests with another Python, or with other versions of what pyproject.toml requires, in an environment and a
# copy of their own, which are removed afterwards: an installation builds the native parts anew where it finds the
# source, beside which `make test` may be running. `make install` comes first.
#
#   tools/test_versions.sh 3.11 tested    the versions of constraints.txt
#   tools/test_versions.sh 3.12 lowest    the lowest versions that pyproject.toml allows
#   tools/test_versions.sh 3.13 newest    the newest
#
# The exit code is pytest's; 69 where this Python or a package cannot be had.
set -uo pipefail
cd "$(dirname "$0")/.."
version=$1 which=$2
# PyTorch's builds for CUDA are of some gigabytes: where they do not come in time, CI goes on without.
install_seconds=400
tests=(
    tests/packing/test_shard_writer.py tests/cli/test_main.py tests/dataset/test_dataset.py
    tests/storage/test_filesystem.py tests/loader/test_stream_loader_state.py tests/loader/test_clip_dataset.py
    tests/transform/test_render.py tests/video/test_ingest.py tests/test_forks.py
)

python=
for candidate in "python$version" "$HOME/.pyenv/versions/$version".*/bin/python; do
    if "$candidate" -c 'import ssl, sqlite3' 2>/dev/null; then python=$candidate && break; fi
done
if [ -z "$python" ]; then
    echo "Python $version with the $which versions: skipped, as there is no such Python here."
    exit 69
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" && git ls-files -z | tar -c --null -T - | tar -x -C "$work/source" || exit
case $which in
    tested) options=(-c constraints.txt) ;;
    lowest) options=(--resolution lowest-direct) ;;
    newest) options=() ;;
    *) echo "not tested, lowest or newest: $which" && exit 2 ;;
esac
uv() { .venv/bin/python -m uv --quiet --no-python-downloads "$@"; }
unset PYTHONDONTWRITEBYTECODE # uv compiles nothing: each process that a test starts would, PyTorch too, for 2 s
# The cache lies beside the environment, which links to its files, and goes with it: it is of some gigabytes.
export UV_CACHE_DIR=$work/cache UV_HTTP_TIMEOUT=120
uv venv --python "$python" "$work/env" &&
    timeout "$install_seconds" .venv/bin/python -m uv --quiet --no-python-downloads pip install \
        --python "$work/env" "${options[@]}" -e "$work/source[dev]"
code=$?
if [ $code -eq 2 ] || [ $code -eq 124 ]; then # the network; 1 is for versions that contradict each other
    echo "Python $version with the $which versions: skipped, as a package cannot be downloaded here."
    exit 69
fi
[ $code -eq 0 ] || exit $code
echo "Python $version with the $which versions:" \
    "$(uv pip freeze --python "$work/env" | grep -iE '^(av|fsspec|numpy|nvidia-dali-cuda120|pyarrow|torch)=' | xargs)"
cd "$work/source" && "$work/env/bin/python" -m pytest -p no:cacheprovider --quick --quiet "${tests[@]}"
