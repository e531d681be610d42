"""The launches of examples/slurm and examples/kubernetes, as they are written, with two "nodes" on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.support.clock import soon
from tests.support.packed import pack_recipes
from tests.support.serving import free_port
from tools.clips import Recipe

CLIPS, EPOCHS, NODES = 13, 2, 2
SECONDS = 120
OPTIONS = ["--epochs", str(EPOCHS), "--batch-size", "1", "--threads", "1", "--every", "2"]
MANIFEST = Path("examples/kubernetes/train.yaml")
SCRIPT = Path("examples/slurm/train.sbatch")

# What the script asks of Slurm. srun starts the command once for each node, and hands on the exit code of the worst.
STAND_INS = {
    "srun": """
[[ $1 == --kill-on-bad-exit=1 ]] && shift
for node in 0 1; do
    SLURM_NODEID=$node "$@" &
    echo $! >> "$STAND_IN_FILES/nodes"
done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit $status
""",
    "scontrol": """
if [[ $1 == show ]]; then echo localhost; echo another-node; else echo "$@" >> "$STAND_IN_FILES/scontrol"; fi
""",
    "scancel": """
echo "$@" >> "$STAND_IN_FILES/scancel"
kill -TERM $(cat "$STAND_IN_FILES/nodes")
""",
    "squeue": "echo RUNNING",
}

# A node that is gone is noticed after three missed heartbeats: after 3 s instead of 15.
TORCHRUN = (
    "words=()\n"
    'for word in "$@"; do [[ $word == is_host=* ]] && word+=",keep_alive_interval=1"; words+=("$word"); done\n'
    'exec "$PYTHON_EXEC" -m torch.distributed.run --local-addr 127.0.0.1 "${words[@]}"'
)

# A pace that leaves time to stop a run in the middle.
SLOWLY = """
import runpy, sys, time
from torch.optim import AdamW
step = AdamW.step
AdamW.step = lambda *a, **k: (time.sleep(0.2), step(*a, **k))[1]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n:02}.mp4": Recipe(width=64, height=64, frames=6, gop=6, seed=n) for n in range(CLIPS)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("launch"), shard_size=40_000, workers=1)


@pytest.fixture
def environment(tmp_path: Path, forked_python: Path) -> dict[str, str]:
    """A PATH with `torchrun`, the Python that it starts ranks by, and nothing of another launch."""
    programs = tmp_path / "bin"
    programs.mkdir()
    add_program(programs / "torchrun", TORCHRUN)
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return kept | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.getcwd(),
        "PYTHON_EXEC": str(forked_python),
        "OMP_NUM_THREADS": "1",
        "RANKS_PER_NODE": "1",
        "RUN_DIR": str(tmp_path / "run"),
        "CACHE_DIR": str(tmp_path / "cache"),
    }


def add_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def slowed(torchrun: str, folder: Path) -> str:
    """`torchrun` that runs the example at a pace which leaves time to stop it in the middle."""
    (folder / "slowly.py").write_text(SLOWLY)
    insert = f'[[ $word == examples/resume.py ]] && words+=("{folder}/slowly.py"); words+=("$word")'
    return f'words=(); for word in "$@"; do {insert}; done; set -- "${{words[@]}}"\n{torchrun}'


def kept_clips(logs: list[Path]) -> list[Counter[tuple[int, int]]]:
    """What each rank consumed: epoch and clip of the steps that the next run, if any, did not make again."""
    ranks = []
    for log in logs:
        seen: dict[int, list[tuple[int, int]]] = {}
        for line in map(json.loads, log.read_text().splitlines()):
            if "start" in line:
                seen = {step: clips for step, clips in seen.items() if step < line["start"]}
            else:
                seen[line["step"]] = [(line["epoch"], clip) for clip in line["clips"]]
        ranks.append(Counter(clip for clips in seen.values() for clip in clips))
    return ranks


def check(folder: Path) -> None:
    ranks = kept_clips(sorted(folder.glob("seen.*")))
    assert len(ranks) == NODES
    assert sum(ranks, Counter()) == Counter((epoch, clip) for epoch in range(EPOCHS) for clip in range(CLIPS))


def wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    assert soon(lambda: path.exists() or process.poll() is not None, SECONDS), f"{path} does not come"
    assert process.poll() is None or path.exists(), process.communicate()


def test_slurm_stops_requeues_and_goes_on(dataset: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    for name, text in STAND_INS.items():
        add_program(tmp_path / "bin" / name, text)
    environment |= {
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_JOB_ID": str(free_port(20_000) - 20_000),  # the script takes a port from 20000 to 29999
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_JOB_NUM_NODES": str(NODES),
        "STAND_IN_FILES": str(tmp_path),
    }
    command = ["bash", str(SCRIPT), str(dataset), *OPTIONS, "--locality", "node", "--seen", str(tmp_path / "seen")]

    add_program(tmp_path / "bin" / "torchrun", slowed(TORCHRUN, tmp_path))
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(tmp_path / "run" / "checkpoint.pt", first)
    first.send_signal(signal.SIGTERM)
    print(first.communicate(timeout=SECONDS)[0])
    assert first.returncode != 0
    assert (tmp_path / "scontrol").read_text() == f"requeue {environment['SLURM_JOB_ID']}\n"
    assert (tmp_path / "scancel").read_text() == f"--signal=TERM {environment['SLURM_JOB_ID']}\n"
    (tmp_path / "nodes").unlink()
    add_program(tmp_path / "bin" / "torchrun", TORCHRUN)
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert second.returncode == 0, second.stdout + second.stderr
    check(tmp_path)


def manifest(kind: str) -> dict[str, Any]:
    """The one object of that kind."""
    found = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one and one["kind"] == kind]
    assert len(found) == 1
    return dict(found[0])


def test_the_manifest_fits_together() -> None:
    job, service, claim = manifest("Job"), manifest("Service"), manifest("PersistentVolumeClaim")
    pods, spec = job["spec"]["template"], job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert str(job["spec"]["completions"]) == str(job["spec"]["parallelism"]) == environment["NODES"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    assert service["metadata"]["name"] == spec["subdomain"]
    assert environment["RDZV_HOST"] == f"{job['metadata']['name']}-0.{spec['subdomain']}"
    assert int(environment["RANKS_PER_NODE"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert int(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < spec["terminationGracePeriodSeconds"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/run/streamvid"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert "emptyDir" in mounts["/cache"]
    paths = dict(one.split("=", 1) for one in container["args"] if "=" in one)
    assert Path(paths["--checkpoint"]).parent.as_posix() in mounts
    assert paths["--cache-dir"] in mounts
    assert container["envFrom"] == [{"secretRef": {"name": "streamvid-s3"}}]


def start_pod(
    index: int, dataset: Path, tmp_path: Path, environment: dict[str, str], port: int
) -> subprocess.Popen[bytes]:
    """The manifest's container, its environment as Kubernetes sets it but for where things are."""
    (container,) = manifest("Job")["spec"]["template"]["spec"]["containers"]
    own = {one["name"]: one["value"] for one in container["env"]}
    own |= {"RANKS_PER_NODE": "1", "RDZV_HOST": "127.0.0.1", "RDZV_PORT": str(port)}
    # A rank that has not gone after ten seconds is killed; the checkpoint is written long before.
    own |= {"JOB_COMPLETION_INDEX": str(index), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10"}
    places = {
        "s3://bucket/train": str(dataset),
        "--checkpoint=/run/streamvid/checkpoint.pt": f"--checkpoint={tmp_path}/checkpoint.pt",
        "--cache-dir=/cache": f"--cache-dir={tmp_path}/cache",
    }
    args = [places.pop(word, word) for word in container["args"]]
    assert not places
    with open(tmp_path / f"pod-{index}.txt", "ab") as out:
        return subprocess.Popen(
            [*container["command"], *args, *OPTIONS, "--seen", str(tmp_path / "seen")],
            env=environment | own, stdout=out, stderr=out,
        )  # fmt: skip


def test_kubernetes_moves_a_pod(dataset: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """One pod is told to go, and another takes its place; the other waits for it, and both go on."""
    # torchrun's agents have been seen to wait for each other for ever, once in about ten runs: one more try.
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        folder.mkdir()
        try:
            move_a_pod(dataset, folder, tmp_path / "bin", environment)
        except subprocess.TimeoutExpired:
            if attempt == "second":
                raise
        else:
            check(folder)
            return


def move_a_pod(dataset: Path, folder: Path, programs: Path, environment: dict[str, str]) -> None:
    """Two pods, the second of which is stopped and started again; whatever happens, none is left running."""
    add_program(programs / "torchrun", slowed(TORCHRUN, folder))
    port = free_port()
    pods = [start_pod(index, dataset, folder, environment, port) for index in range(NODES)]
    try:
        wait_for(folder / "checkpoint.pt", pods[0])
        pods[1].terminate()
        assert pods[1].wait(SECONDS) != 0, "Kubernetes would not start it again"
        pods[1] = start_pod(1, dataset, folder, environment, port)
        assert [pod.wait(SECONDS) for pod in pods] == [0, 0]
    finally:
        for pod in pods:
            pod.terminate()
        for pod in pods:
            try:
                pod.wait(20)
            except subprocess.TimeoutExpired:
                pod.kill()
        for index in range(NODES):
            print((folder / f"pod-{index}.txt").read_text())
