#!/bin/bash
# Tests with another Python, or with other versions of what pyproject.toml requires, in an environment and a copy of their
# own, which are removed afterwards: an installation builds the native parts anew where it finds the source, beside which
# `make test` may be running. `make install` comes first.
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
# One or a few for each interface that changes with Python or a library: the other tests of a suite that passes with the
# versions of constraints.txt say nothing new.
tests=(
    # Python: how arguments are parsed, what comes of signals and of objects that are left at the end, forks.
    tests/cli/test_main.py::test_{info,whatever_happens_it_is_one_sentence,wrong_options_are_one_sentence}
    tests/cli/test_main.py::test_{as_a_process,a_signal_is_not_lost,ctrl_c_while_modules_are_imported}
    tests/test_forks.py
    tests/transform/test_render.py::test_a_pipeline_is_freed_with_its_last_reference
    tests/transform/test_render.py::test_an_error_does_not_keep_the_pipeline
    tests/dataset/test_where.py::test_deep_and_long_conditions
    # PyAV: demuxing, muxing and decoding, its encoders, and the FFmpeg in it that the native decoder calls.
    tests/video/test_ingest.py::test_both_ways_give_the_same[{h264,h264_trimmed,h264_transposed,hevc,vp9_mp4,av1}]
    tests/video/test_transcode.py::test_frames_times_and_colours_are_kept
    tests/video/test_native_decoder.py::test_it_gives_what_pyav_gives[{h264_pyramid,hevc_10bit,vp9_odd,av1}]
    tests/video/test_image_decoder.py::test_a_damaged_image_costs_no_other
    # PyArrow, and webdataset and DALI as readers of what is written.
    tests/packing/test_shard_writer.py
    tests/packing/test_typed_columns.py::test_{a_parquet_list_keeps_its_types,typed_columns_are_read_back}
    tests/dataset/test_dataset.py::test_{rows_and_indexes,pickling_leaves_the_indexes_behind,metadata_that_are_not_utf8}
    tests/dataset/test_dataset.py::test_damage_is_refused_at_opening[{truncated\ parquet,column\ of\ another\ type,null}]
    # fsspec with s3fs.
    tests/storage/test_filesystem.py::test_{local_round_trip,ranges_of_local_and_remote_files,unknown_protocol}
    tests/storage/test_filesystem.py::test_{http_server_down,s3_server_down,s3_missing,s3_refused_credentials}
    tests/storage/test_filesystem.py::test_s3_{large_file_in_parts,ranges,after_fork}
    # PyTorch: batches, workers of a DataLoader, meshes, checkpoints; NumPy's random numbers; DALI's pictures.
    tests/loader/test_stream_loader_state.py::test_the_same_batches_go_on[1-{None-full,node-block}]
    tests/loader/test_stream_loader_state.py::test_{a_state_in_a_distributed_checkpoint,a_mixture,weights}
    tests/loader/test_clip_dataset.py::test_{samples_are_those_of_a_stream_loader,what_only_dali_resizes}
    tests/loader/test_clip_dataset.py::test_{workers_of_any_kind,a_pickled_dataset_is_small_and_the_same}
    tests/loader/test_clip_dataset.py::test_{distributed_and_random_samplers,a_forked_child_uses_nothing_of_its_parent}
    tests/plan/test_mesh.py::test_dimensions_by_name tests/plan/test_agreement.py::test_a_real_process_group_has_a_store
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
        --python "$work/env" "${options[@]}" -e "$work/source[test]"
code=$?
if [ $code -eq 2 ] || [ $code -eq 124 ]; then # the network; 1 is for versions that contradict each other
    echo "Python $version with the $which versions: skipped, as a package cannot be downloaded here."
    exit 69
fi
[ $code -eq 0 ] || exit $code
echo "Python $version with the $which versions:" \
    "$(uv pip freeze --python "$work/env" | grep -iE '^(av|fsspec|numpy|nvidia-dali-cuda120|pyarrow|torch)=' | xargs)"
cd "$work/source" && "$work/env/bin/python" -m pytest -p no:cacheprovider --quiet "${tests[@]}"
