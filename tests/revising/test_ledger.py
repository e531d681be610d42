"""The steps of a run in which a clip was seen, compared with the run's batches."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import streamvid as sv
from streamvid.cli.main import main
from streamvid.errors import InputError
from streamvid.packing.pack import pack
from streamvid.plan.mixture import whole_weights
from tests.revising.conftest import CLIPS
from tests.support.clips import write
from tests.support.web import website
from tools.recipes import Recipe

Found = set[tuple[int, int, int, str, bool]]


class Run:
    """A run of several ranks, of which notes are taken."""

    def __init__(self, folder: Any, **options: Any) -> None:
        self.folder, self.options = folder, {"sampling": sv.Window(2), "device": "cpu", **options}
        self.step = 0
        self.notes: Found = set()
        self.state: Mapping[str, Any] = {}

    def go(self, *, ranks: int, batch: int, epochs: list[int | None], **options: Any) -> None:
        """Make epochs, or so many steps of each, on so many ranks, from the last state on."""
        nodes = {"locality": "node", "ranks_per_node": 1} if self.options.get("locality") else {}
        every = {**self.options, **nodes, **options, "batch_size": batch, "world_size": ranks}
        loaders = [sv.StreamLoader(self.folder, rank=rank, **every) for rank in range(ranks)]
        for one in loaders:
            if self.state:
                one.load_state_dict(json.loads(json.dumps(self.state)))
        for steps in epochs:
            for made, batches in enumerate(zip(*loaders, strict=True), 1):
                for rank, found in enumerate(batches):
                    for key, valid in zip(found["key"], found["valid"].tolist(), strict=True):
                        self.notes.add((self.step, rank, loaders[0]._position._now.epoch_number, key, valid))
                self.step += 1
                states = [one.state_dict() for one in loaders]
                assert all(one == states[0] for one in states)
                self.state = states[0]
                if made == steps:
                    break
        assert len(json.dumps(self.state)) < 2000

    def check(self, **options: Any) -> None:
        dataset = sv.Dataset.open(self.folder if not isinstance(self.folder, sv.Mix) else self.folder.parts[0][0])
        state = json.loads(json.dumps(self.state))
        found: Found = set()
        for key in dataset.clips.key:
            found |= {(one.run_step, one.rank, one.epoch, key, one.valid) for one in sv.ledger(state, key, **options)}
        assert found == self.notes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"group_by_size": 2},
        {"locality": "node"},
        {"last_batch": "fill"},
        {"last_batch": "drop"},
        {"steps_per_epoch": 2},
        {"sampling": sv.TiledWindows(2)},
    ],
    ids=str,
)
def test_the_ledger_has_the_steps_of_the_batches(folder: Path, options: dict[str, Any]) -> None:
    run = Run(folder, **options)
    run.go(ranks=1, batch=2, epochs=[None, None])
    run.check()
    run.go(ranks=2, batch=1, epochs=[None, 1])  # the second is broken off, and saved within the loop
    run.check()
    run.go(ranks=1, batch=1, epochs=[None])
    run.check()


def test_legs_of_epochs_that_went_alike_are_one(folder: Path) -> None:
    run = Run(folder)
    run.go(ranks=1, batch=2, epochs=[None] * 30)
    assert len(run.state["legs"]) <= 2
    run.check()


def test_a_run_of_more_legs_than_a_state_holds_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Epochs that are left sooner or later are a leg each. What the state does not tell any more is said."""
    monkeypatch.setattr("streamvid.plan.run_log._MOST", 6)
    run = Run(folder)
    run.go(ranks=1, batch=2, epochs=[1, 2] * 5)
    run.go(ranks=1, batch=1, epochs=[1, 2] * 5)
    assert len(run.state["legs"]) <= 6
    dropped = run.state["steps_before_legs"]
    run.notes = {note for note in run.notes if note[0] >= dropped > 0}
    run.check()
    assert f"the run's first {dropped} steps" in caplog.text


def test_across_revisions(folder: Path) -> None:
    run = Run(folder)
    run.go(ranks=1, batch=2, epochs=[None, 1])
    sv.forget(folder, ["clip1", "clip4"])
    run.go(ranks=1, batch=2, epochs=[None, None])
    run.check()
    assert run.state["revisions"] == [1]
    assert [leg[6] for leg in run.state["legs"]] == [[0], [0], [1], [1]]
    seen = sv.ledger(run.state, "clip1")
    assert {one.epoch for one in seen} <= {0, 1}
    sv.forget(folder, ["clip1"], purge=True)
    assert seen == sv.ledger(run.state, "clip1")


def test_across_an_append(folder: Path, tmp_path: Path) -> None:
    run = Run(folder)
    run.go(ranks=1, batch=2, epochs=[1])
    (tmp_path / "more").mkdir()
    write(Recipe(width=64, height=64, frames=6, gop=3, b_frames=0, seed=99), tmp_path / "more" / "late.mp4")
    pack([tmp_path / "more"], folder, append=True, progress=False)
    run.go(ranks=1, batch=2, epochs=[None, None])
    run.check()
    assert len(sv.ledger(run.state, "late")) == 1


def test_selections_and_mixes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("clip0\nclip1\nclip2\n")
    subset = sv.Subset(folder, where="score < 1", exclude=tmp_path / "keys.txt")
    run = Run(folder)
    loader = sv.StreamLoader(subset, batch_size=2, sampling=sv.Window(2), device="cpu")
    seen = {key for batch in loader for key in batch["key"]}
    state = loader.state_dict()
    assert {key for key in (f"clip{n}" for n in range(CLIPS)) if sv.ledger(state, key)} == seen
    mix = sv.Mix([(sv.Subset(folder, where="score < 0.6"), 1), (sv.Subset(folder, where="score > 0.6"), 2)])
    loader = sv.StreamLoader(mix, batch_size=2, sampling=sv.Window(2), device="cpu", steps_per_epoch=3)
    keys = [key for batch in loader for key in batch["key"]]
    dataset = loader.dataset
    assert sum(len(sv.ledger(loader.state_dict(), key)) for key in dataset.clips.key) == len(keys)
    # These shares, rounded to whole numbers, come out otherwise if they are rounded again.
    thirds = sv.Mix([(folder, 0.49), (sv.Subset(folder, where="score < 0.6"), 0.88), (folder, 0.27)])
    assert whole_weights(weights := whole_weights([weight for _, weight in thirds.parts])) != weights
    loader = sv.StreamLoader(thirds, batch_size=2, sampling=sv.Window(2), device="cpu", steps_per_epoch=3)
    keys = [key for batch in loader for key in batch["key"]]
    assert sum(len(sv.ledger(loader.state_dict(), key)) for key in loader.dataset.clips.key) == len(keys)
    assert run.step == 0


def test_rates_that_are_fractions(folder: Path) -> None:
    loader = sv.StreamLoader(folder, batch_size=2, sampling=sv.Window(2, fps=Fraction(30000, 1001)), device="cpu")
    keys = [key for batch in loader for key in batch["key"]]
    assert [len(sv.ledger(loader.state_dict(), key)) for key in keys] == [1] * CLIPS


def test_frames_whose_numbers_fill_pages(folder: Path) -> None:
    """A state names all of them, and the ledger reads all that a state names."""
    loader = sv.StreamLoader(folder, sampling=sv.Frames([0, 1] * 1000), batch_size=1, device="cpu")
    assert len(sv.ledger(loader.state_dict(), "clip1")) == 0
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(state["run"]["sampling"]) > 5000
    assert sum(len(sv.ledger(state, f"clip{n}")) for n in range(CLIPS)) == 1
    loader.close()


def test_states_hold_no_secrets(folder: Path) -> None:
    with website() as site:
        site.files["/keys.csv?sig=geheim"] = b"key\nclip1\n"
        site.files["/others.txt?sig=geheim"] = b"clip2\n"
        subset = sv.Subset(folder, keys=f"{site.url}/keys.csv?sig=geheim", exclude=f"{site.url}/others.txt?sig=geheim")
        loader = sv.StreamLoader(subset, batch_size=1, sampling=sv.Window(2), device="cpu")
        assert [batch["key"] for batch in loader] == [["clip1"]]
        state = json.dumps(loader.state_dict())
    assert "geheim" not in state
    assert f"{site.url}/keys.csv" in state


def test_what_is_not_in_the_state_comes_from_a_loader(folder: Path) -> None:
    def make() -> sv.StreamLoader:
        subset = sv.Subset(folder, keys=["clip1", "clip3"])
        return sv.StreamLoader(subset, batch_size=1, sampling=sv.Window(2), device="cpu")

    loader = make()
    assert len(list(loader)) == 2
    state = loader.state_dict()
    with pytest.raises(InputError, match="does not say which clips the run had"):
        sv.ledger(state, "clip1")
    assert len(sv.ledger(state, "clip1", loader=make())) == 1
    assert sv.ledger(state, "clip0", loader=make()) == []


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = sv.StreamLoader(folder, batch_size=2, sampling=sv.Window(2), device="cpu")
    steps = [step for step, batch in enumerate(loader) if "clip3" in batch["key"]]
    (tmp_path / "state.json").write_text(json.dumps({"step": 3, "data": loader.state_dict()}))
    torch.save({"model": {"w": torch.zeros(1)}, "loader": loader.state_dict()}, tmp_path / "state.pt")
    for name in ("state.json", "state.pt"):
        assert main(["ledger", str(tmp_path / name), "clip3"]) == 0
        assert capsys.readouterr().out.startswith(
            f"seen 1 time\nepoch 0 step {steps[0]} (of the run {steps[0]}) rank 0"
        )
    assert main(["ledger", str(tmp_path / "state.json"), "clip3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["step"] == steps[0]


def test_arguments_of_another_type() -> None:
    with pytest.raises(sv.InputError, match="key must be the key of a clip, a text; it is 3"):
        sv.ledger({}, 3)  # type: ignore[arg-type]
    with pytest.raises(sv.InputError, match="loader must be a StreamLoader; it is 'set'"):
        sv.ledger({}, "key", loader="set")  # type: ignore[arg-type]


def test_unknown_clips_and_other_states_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = sv.StreamLoader(folder, batch_size=2, sampling=sv.Window(2), device="cpu")
    list(loader)
    state = loader.state_dict()
    with pytest.raises(InputError, match=r"there is no clip 'clip9' .*did you mean|there is no clip 'clip9'"):
        sv.ledger(state, "clip9")
    with pytest.raises(InputError, match="there is no clip"):  # as a key that is no UTF-8 comes from the command line
        sv.ledger(state, "\udcff")
    for other in ({"epoch": 1}, {name: value for name, value in state.items() if name != "legs"}):
        with pytest.raises(InputError, match="not the state of a StreamLoader"):
            sv.ledger(other, "clip1")
    for name, value in (
        ("legs", 7),
        ("legs", [[1]]),
        ("legs", [[[0, 0, 6, []], 0, 1, 2, 0, 3, [0], 4, 1]]),
        ("run", 1),
    ):
        with pytest.raises(InputError, match="the state is damaged"):
            sv.ledger({**state, name: value}, "clip1")
    with pytest.raises(InputError, match="another seed"):
        sv.ledger({**state, "run": {**state["run"], "seed": 5}}, "clip1")
    (tmp_path / "x.bin").write_bytes(b"no state")
    (tmp_path / "x.json").write_text("[]")
    for path in ("none.json", "x.bin", "x.json"):
        assert main(["ledger", str(tmp_path / path), "clip1"]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):  # never read: neither ends
        assert main(["ledger", path, "clip1"]) == 2
        assert ", not a file; give the file in which a run saved" in capsys.readouterr().err
