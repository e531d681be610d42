"""Ranks from the environment of every launcher, and from no shell that only looks like one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from streamvid.errors import InputError
from streamvid.plan.launchers import Launch, find_launch, local_rank, local_world_size, ranks_per_node
from tests.support.launch import LAUNCHERS, Environment, is_launchers, mpirun, sbatch, srun, torchrun, use


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("size", "per_node"), [(1, 1), (2, 2), (4, 2), (6, 1), (12, 4)])
def test_every_rank_of_every_launcher(
    launcher: type[Environment], size: int, per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = set()
    for rank in range(size):
        use(monkeypatch, launcher(rank, size, per_node))  # type: ignore[call-arg]
        launch = find_launch()
        assert launch is not None
        assert (launch.rank, launch.size) == (rank, size)
        assert local_rank() == rank % per_node
        nodes.add(ranks_per_node(size))
    assert nodes <= {None, per_node}
    assert len(nodes) == 1, "the ranks do not agree on the nodes"


def test_without_a_launcher_there_is_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"LOCAL_SIZE": "large"})  # somebody's own
    assert find_launch() is None
    assert local_rank() == 0
    assert local_world_size() is None
    assert ranks_per_node(4) is None


@pytest.mark.parametrize(
    "step",
    [{}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "4294967294"}, {"SLURM_STEP_ID": "batch"},
     {"SLURM_STEP_ID": "4294967290"}, {"SLURM_STEP_ID": "interactive"}, {"SLURM_STEPID": "4294967292"},
     {"SLURM_STEP_ID": "-1"}, {"SLURM_STEP_ID": ""}],
)  # fmt: skip
def test_a_batch_or_interactive_shell_of_slurm_is_one_process(
    step: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, sbatch(8) | step)
    assert find_launch() is None


def test_the_old_name_of_slurms_step(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = srun(3, 4, 2)
    for name in ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE"):
        del environment[name]
    use(monkeypatch, environment)
    launch = find_launch()
    assert launch is not None
    assert (launch.rank, launch.size) == (3, 4)


ASK = "import os; from streamvid.plan.launchers import find_launch; os.write(3, repr(find_launch()).encode())"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_shell_of_srun_pty_is_one_process_but_tasks_started_there_are_not(terminal: bool) -> None:
    """They inherit SLURM_PTY_PORT; the shell has the terminal, and they do not."""
    environment = {name: value for name, value in os.environ.items() if not is_launchers(name)}
    environment |= srun(1, 4, 2) | {"SLURM_PTY_PORT": "40001", "PYTHONPATH": os.getcwd()}
    answer, theirs = os.pipe()
    if terminal:
        process, screen = pty.fork()
        if process == 0:
            os.dup2(theirs, 3)
            os.execve(sys.executable, [sys.executable, "-c", ASK], environment)
        os.waitpid(process, 0)
        os.close(screen)
    else:
        code = f"import os; os.dup2({theirs}, 3); {ASK}"
        subprocess.run(
            [sys.executable, "-c", code], env=environment, pass_fds=[theirs], start_new_session=True, check=True
        )
    os.close(theirs)
    with os.fdopen(answer) as pipe:
        found = pipe.read()
    assert found == "None" if terminal else "rank=1, size=4" in found


@pytest.mark.parametrize(
    ("title", "found"), [("slurmstepd: [18.batch]", "None"), ("slurmstepd: [18.0]", "Launch(rank=1")]
)
def test_the_shell_of_a_batch_job_that_a_step_submitted(title: str, found: str) -> None:
    """It has that step's variables; only the daemon above it says what it is."""
    environment = {name: value for name, value in os.environ.items() if not is_launchers(name)}
    environment |= srun(1, 2, 2) | {"PYTHONPATH": os.getcwd()}
    task = f"import os; os.environ['SLURM_TASK_PID'] = str(os.getpid()); {ASK.replace('3', '1')}"
    daemon = f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', sys.argv[1]])"
    done = subprocess.run(
        [title, "-c", daemon, task],
        executable=sys.executable,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(found)


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "RANK"),
        ({"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0"}, "WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "rank 0 of 0"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2.0"}, "WORLD_SIZE"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "1_0", "WORLD_SIZE": "20"}, "RANK"),
        ({"LOCAL_RANK": "2", "NODE_RANK": "0", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"LOCAL_RANK": "2", "NODE_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK is 2 of 2"),
        ({"LOCAL_RANK": "0", "NODE_RANK": "x", "WORLD_SIZE": "4"}, "NODE_RANK"),
        ({"LOCAL_RANK": "0", "NODE_RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "rank 4 of 4"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, "SLURM_NTASKS"),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, "SLURM_PROCID"),
        ({"SLURM_STEP_ID": "0"}, "SLURM_PROCID and SLURM_NTASKS"),
        (srun(1, 4, 2) | {"SLURM_PROCID": "4"}, "rank 4 of 4.*Slurm"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE"),
        (mpirun(0, 2, 2) | {"OMPI_COMM_WORLD_RANK": "7"}, "rank 7 of 2.*Open MPI"),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, "PMI_RANK"),
    ],
)
def test_what_is_missing_or_contradictory_is_said(
    environment: Environment, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, environment)
    with pytest.raises(InputError, match=word) as error:
        find_launch()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "environment",
    [
        {"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"},  # of how many on a node?
        {"LOCAL_RANK": "0", "NODE_RANK": "0"},
    ],
)
def test_a_rank_that_cannot_be_told_yet(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's launcher on the second of two nodes: the process group will say it."""
    use(monkeypatch, environment)
    launch = find_launch()
    assert launch is not None
    assert launch.rank is None
    assert launch.size == int(environment.get("WORLD_SIZE", "1"))


def test_the_order_in_which_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"LOCAL_RANK": "3", "NODE_RANK": "0"}
    use(monkeypatch, torchrun(1, 2, 2) | both | srun(2, 3, 3) | mpirun(4, 5, 5))
    assert find_launch() == Launch(1, 2, "the environment variables RANK and WORLD_SIZE")
    use(monkeypatch, both | {"WORLD_SIZE": "4"} | srun(2, 3, 3) | mpirun(4, 5, 5))
    assert find_launch() == Launch(3, 4, "the environment variables LOCAL_RANK, NODE_RANK and WORLD_SIZE")
    use(monkeypatch, srun(2, 3, 3) | mpirun(4, 5, 5))
    assert find_launch() == Launch(2, 3, "Slurm's step", one_run=False)
    use(monkeypatch, mpirun(4, 5, 5))
    assert find_launch() == Launch(4, 5, "Open MPI", one_run=False)


@pytest.mark.parametrize(
    ("environment", "per_node"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}, None),  # eight and four: four does not say nodes, either
        ({"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, None),
        ({"LOCAL_WORLD_SIZE": "5"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x3)"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "12"}, 12),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),2(x2)"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, None),  # of a step that is not the world
    ],
)
def test_nodes_of_twelve_ranks(environment: Environment, per_node: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, environment)
    assert ranks_per_node(12) == per_node
