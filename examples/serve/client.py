"""Ask a Triton server what is in videos: their bytes to the model of the transform, its tensors to the classifier.

    python examples/serve/client.py film.mp4 other.mp4 --url http://localhost:8000 --classes models/classes.txt

Triton speaks KServe's protocol, version 2, with its extension for binary tensors: a POST of a JSON header and the
tensors behind it, and an answer of the same form. `tritonclient` does the same; README.md has these lines with it.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
TYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32}


def encoded(paths: Sequence[Path]) -> Array:
    """Videos as one tensor, uint8 [videos, bytes]: shorter files are filled up with zeros, which DALI does not read."""
    files = [np.fromfile(path, dtype=np.uint8) for path in paths]
    batch = np.zeros((len(files), max(map(len, files))), dtype=np.uint8)
    for row, file in zip(batch, files, strict=True):
        row[: len(file)] = file
    return batch


def request(name: str, tensor: Array, output: str) -> tuple[bytes, int]:
    """The body of a request, and how many bytes of it are the header."""
    (kind,) = (kind for kind, dtype in TYPES.items() if dtype == tensor.dtype)
    size = {"binary_data_size": tensor.nbytes}
    header = {
        "inputs": [{"name": name, "shape": tensor.shape, "datatype": kind, "parameters": size}],
        "outputs": [{"name": output, "parameters": {"binary_data": True}}],
    }
    text = json.dumps(header).encode()
    return text + tensor.tobytes(), len(text)


def answer(body: bytes, header: int) -> Array:
    """The tensor of an answer that has one."""
    (output,) = json.loads(body[:header])["outputs"]
    return np.frombuffer(body[header:], dtype=TYPES[output["datatype"]]).reshape(output["shape"])


def infer(url: str, model: str, name: str, tensor: Array, output: str) -> Array:
    """What a model gives for a tensor."""
    body, header = request(name, tensor, output)
    post = urllib.request.Request(
        f"{url}/v2/models/{model}/infer",
        body,
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(header)},
    )
    with urllib.request.urlopen(post) as got:
        return answer(got.read(), int(got.headers["Inference-Header-Content-Length"]))


def main() -> int:
    """Name the class of each video: that of the highest score on average over its sub-sequences."""
    parser = argparse.ArgumentParser(description="Ask a Triton server what is in videos.")
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--classes", type=Path, required=True, help="the file that train.py wrote")
    arguments = parser.parse_args()
    names = arguments.classes.read_text().splitlines()
    for path in arguments.videos:  # one by one: which sub-sequences are of which video, an answer does not say
        clips = infer(arguments.url, "clips", "encoded", encoded([path]), "video")
        scores = infer(arguments.url, "classify", "INPUT__0", clips, "OUTPUT__0")
        print(f"{path}\t{names[int(scores.mean(axis=0).argmax())]}\t{len(clips)} sub-sequences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
