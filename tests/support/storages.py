"""Servers of storages other than S3, each of a test on a free port: Azurite for `az://` (npm install -g azurite), an
emulator of Google's for `gs://` (pip install gcp-storage-emulator), and as much of Hugging Face's API as reading a data
set takes for `hf://`. What is not installed is a reason to skip."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.serving import Handler, free_port, serving

AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, of the account devstoreaccount1, which everybody knows."""
HF_TOKEN = "hf_secretsecretsecretsecret"


def wait_for(port: int) -> None:
    """Until somebody listens."""
    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < end, "the server does not come up"
        time.sleep(0.05)


def azure_account(port: int, key: str = AZURE_KEY) -> str:
    """The connection string of Azurite's account."""
    url = f"http://127.0.0.1:{port}/devstoreaccount1"
    return f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};BlobEndpoint={url};"


@contextlib.contextmanager
def azure(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """A container of an Azurite: its URL."""
    pytest.importorskip("adlfs", reason="no adlfs to test with: pip install adlfs")
    program = shutil.which("azurite-blob") or pytest.skip("no Azurite to test with: npm install -g azurite")
    port = free_port()
    command = [program, "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--blobPort", str(port)]
    log = folder / "azurite.log"
    with (
        log.open("w") as out,
        subprocess.Popen([*command, "--location", str(folder)], stdout=out, stderr=out) as server,
    ):
        try:
            wait_for(port)
            patch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_account(port))
            fsspec.filesystem("az", skip_instance_cache=True).mkdir("box")
            yield "az://box"
        finally:
            server.terminate()


@contextlib.contextmanager
def google(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of Google's storage: its URL."""
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # read by its import; the emulator does not know that
    pytest.importorskip("gcsfs", reason="no gcsfs to test with: pip install gcsfs")
    program = shutil.which("gcp-storage-emulator", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if program is None:
        pytest.skip("no emulator to test with: pip install gcp-storage-emulator")
    port = free_port()
    command = [program, "start", "--host", "localhost", "--port", str(port), "--in-memory", "--default-bucket", "box"]
    with (folder / "google.log").open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as server:
        try:
            wait_for(port)
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
            patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
            yield "gs://box"
        finally:
            server.terminate()


class _Hub(Handler):
    """Answers what huggingface_hub asks to read the files of one data set, `me/set`."""

    files: dict[str, bytes]
    seen: list[tuple[str, str, str]]

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.seen.append((self.command, path, self.headers.get("Range", "")))
        if self.headers.get("Authorization") != f"Bearer {HF_TOKEN}":
            return self.send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if match := re.fullmatch("/datasets/me/set/resolve/main/(.*)", path):
            return self._file(match[1])
        if re.fullmatch("/api/datasets/me/set(/revision/main)?", path):
            return self._json({"id": "me/set", "sha": "0" * 40, "siblings": [], "tags": [], "private": True})
        if match := re.fullmatch("/api/datasets/me/set/tree/main/?(.*)", path):
            return self._json(self._tree(match[1], "recursive=true" in self.path.lower()))
        if path == "/api/datasets/me/set/paths-info/main":
            fields = urllib.parse.parse_qs(body.decode()) if not body.startswith(b"{") else json.loads(body)
            return self._json([one for name in fields["paths"] for one in self._infos(name)])
        return self.send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _infos(self, name: str) -> list[dict[str, Any]]:
        if name in self.files:
            return [{"type": "file", "path": name, "size": len(self.files[name]), "oid": "1" * 40}]
        inside = any(path.startswith(f"{name}/") for path in self.files)
        return [{"type": "directory", "path": name, "oid": "2" * 40}] if inside else []

    def _tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        start = f"{folder}/" if folder else ""
        inside = [path.removeprefix(start) for path in self.files if path.startswith(start)]
        names = inside if recursive else list(dict.fromkeys(path.partition("/")[0] for path in inside))
        return [one for name in names for one in self._infos(start + name)]

    def _file(self, name: str) -> None:
        if name not in self.files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        data, status, more = self.files[name], 200, {"ETag": '"1"', "X-Repo-Commit": "0" * 40}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
            more["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], 206
        return self.send(status, data, more)

    def _json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


@contextlib.contextmanager
def hugging_face(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The files of a folder as a data set: its URL, and what is asked: method, path and range."""
    pytest.importorskip("huggingface_hub", reason="no huggingface_hub to test with: pip install huggingface_hub")
    from huggingface_hub import constants, hf_file_system

    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    seen: list[tuple[str, str, str]] = []
    with serving(_Hub, files=files, seen=seen) as port:
        url = f"http://127.0.0.1:{port}"
        patch.setattr(constants, "ENDPOINT", url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setitem(fsspec.config.conf, "hf", {"endpoint": url, "token": HF_TOKEN})
        hf_file_system.HfFileSystem.clear_instance_cache()
        try:
            yield "hf://datasets/me/set", seen
        finally:
            hf_file_system.HfFileSystem.clear_instance_cache()
