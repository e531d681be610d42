"""A stand-in for a Triton server: the v2 protocol over HTTP with binary tensors, and the models of a repository, by
DALI and PyTorch. What it is asked is held against `config.pbtxt`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.support import pbtxt
from tests.support import serving as web
from tests.support.serving import Handler

TYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32}
Array = npt.NDArray[Any]


class _Models(Handler):
    repository: Path

    def answer(self) -> None:
        _, version, models, name, what = self.path.split("/")
        assert (version, models, what) == ("v2", "models", "infer")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        end = int(self.headers["Inference-Header-Content-Length"])
        kind, made = infer(self.repository / name, json.loads(body[:end]), body[end:])
        output = {"name": kind, "shape": made.shape, "datatype": _type(made), "parameters": {}}
        output["parameters"] = {"binary_data_size": made.nbytes}
        header = json.dumps({"model_name": name, "model_version": "1", "outputs": [output]}).encode()
        self.send(200, header + made.tobytes(), {"Inference-Header-Content-Length": str(len(header))})


@contextlib.contextmanager
def serving(repository: Path) -> Iterator[str]:
    """The server's URL, while it runs."""
    with web.serving(_Models, repository=repository) as port:
        yield f"http://127.0.0.1:{port}"


def infer(folder: Path, asked: dict[str, Any], data: bytes) -> tuple[str, Array]:
    """The name and the tensor of the model's output."""
    config = pbtxt.parse((folder / "config.pbtxt").read_text())
    (given,), (wanted,) = asked["inputs"], asked["outputs"]
    (known,), (output,) = config["input"], config["output"]
    assert (given["name"], wanted["name"]) == (known["name"], output["name"])
    assert f"TYPE_{given['datatype']}" == known["data_type"]
    assert given["parameters"]["binary_data_size"] == len(data)
    count, *sides = given["shape"]
    assert count <= config["max_batch_size"]
    assert len(sides) == len(known["dims"])
    assert all(want in (-1, side) for want, side in zip(known["dims"], sides, strict=True))
    tensor = np.frombuffer(data, dtype=TYPES[given["datatype"]]).reshape(given["shape"])
    made = (_by_dali if config["backend"] == "dali" else _by_pytorch)(folder / "1", config, tensor)
    assert list(made.shape[1:]) == output["dims"]
    assert f"TYPE_{_type(made)}" == output["data_type"]
    return output["name"], made


def _by_dali(folder: Path, config: dict[str, Any], tensor: Array) -> Array:
    from nvidia.dali import Pipeline

    graph = Pipeline.deserialize(
        filename=str(folder / "model.dali"), batch_size=config["max_batch_size"], num_threads=2, device_id=None
    )
    graph.build()
    graph.feed_input(config["input"][0]["name"], list(tensor))
    (output,) = graph.run()
    # split_along_outer_axis
    return np.concatenate([np.array(output.at(n)) for n in range(len(tensor))])


def _by_pytorch(folder: Path, config: dict[str, Any], tensor: Array) -> Array:
    model = torch.jit.load(str(folder / "model.pt"))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(tensor.copy())).numpy())


def _type(made: Array) -> str:
    return next(kind for kind, dtype in TYPES.items() if dtype == made.dtype)
