"""A model folder is uploaded to a Hub on this machine; what cannot be uploaded is one sentence."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bertwright.errors import InputError, RunFailed
from bertwright.interop.push import push_model
from tests.support.encoders import write_encoder
from tests.support.hub import hub_server

REVISION = "2e" * 20


class UploadHub(BaseHTTPRequestHandler):
    """As much of the Hub as creating a repository and a commit of small files takes."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    private: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_writes":
            self.answer(403, {"error": "read only"})
        elif self.path == "/api/repos/create":
            self.create(json.loads(body))
        elif self.path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif self.path.startswith("/api/models/") and not self.is_here():
            self.answer(404, {"error": "Repository not found"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.answer(200, {"files": modes})
        elif "/commit/" in self.path:
            self.commit(self.path.removeprefix("/api/models/").split("/commit/")[0], body)
        else:
            self.answer(404, {"error": "no such page"})

    def is_here(self) -> bool:
        return any(self.path.startswith(f"/api/models/{name}/") for name in self.repositories)

    def create(self, request: dict[str, Any]) -> None:
        name = "/".join(filter(None, (request.get("organization"), request["name"])))
        if name in self.repositories:
            self.answer(409, {"error": "You already created this model repo"})
            return
        self.repositories[name] = {}
        self.private.extend([name] if request.get("visibility") == "private" else [])
        self.answer(200, {"url": f"http://{self.headers['Host']}/{name}", "id": name})

    def commit(self, name: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.repositories[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        url = f"http://{self.headers['Host']}/{name}/commit/{REVISION}"
        self.answer(200, {"commitUrl": url, "commitOid": REVISION, "success": True})

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/").split("/revision")[0].split("?")[0]
        if name in self.repositories:
            self.answer(200, {"id": name, "sha": REVISION, "private": name in self.private, "siblings": []})
        else:
            self.answer(404, {"error": "Repository not found"})

    do_HEAD = do_GET

    def answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def upload_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty Hub on this machine; gives its address."""
    pytest.importorskip("huggingface_hub")
    UploadHub.repositories.clear()
    UploadHub.private.clear()
    with hub_server(UploadHub, tmp_path / "hub") as environment:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", environment["HF_ENDPOINT"])
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_writes")
        yield environment["HF_ENDPOINT"]


@pytest.fixture
def pushed_model(tmp_path: Path, own_tokenizer: Path) -> Path:
    """A model folder with a file that is no part of the model."""
    folder = tmp_path / "model"
    write_encoder(folder, own_tokenizer)
    (folder / "notes.txt").write_text("not for others")
    return folder


@pytest.mark.slow
def test_the_files_of_a_model_and_nothing_else_are_uploaded(upload_hub: str, pushed_model: Path) -> None:
    result = push_model(str(pushed_model), "own/wiki", private=True, update=False)
    expected = {path.name: path.read_bytes() for path in pushed_model.iterdir() if path.name != "notes.txt"}
    assert UploadHub.repositories == {"own/wiki": expected}
    assert UploadHub.private == ["own/wiki"]
    assert result["address"] == f"{upload_hub}/own/wiki"
    assert result["files"] == sorted(expected)
    (pushed_model / "README.md").write_text("---\nlicense: mit\n---\nA better card.\n")
    with pytest.raises(InputError, match="push own/wiki: exists already; --update adds a commit to it"):
        push_model(str(pushed_model), "own/wiki", private=False, update=False)
    push_model(str(pushed_model), "own/wiki", private=False, update=True)
    assert b"A better card." in UploadHub.repositories["own/wiki"]["README.md"]


@pytest.mark.slow
@pytest.mark.usefixtures("upload_hub")
def test_what_cannot_be_pushed_is_one_sentence(
    pushed_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(
        source: Path = pushed_model, name: str = "own/wiki", *, private: bool = False, update: bool = False
    ) -> None:
        push_model(str(source), name, private=private, update=update)

    with pytest.raises(InputError, match="absent: not a model folder"):
        push(tmp_path / "absent")
    with pytest.raises(InputError, match="push own/a/b: no name of a repository"):
        push(name="own/a/b")
    with pytest.raises(InputError, match="push own/absent: the Hub has no such repository; leave --update out"):
        push(name="own/absent", update=True)
    with pytest.raises(InputError, match="--private is for a new repository"):
        push(private=True, update=True)
    monkeypatch.setenv("HF_TOKEN", "hf_reads")
    with pytest.raises(InputError, match=r"push own/wiki: the Hub refuses your token \(403\)"):
        push()
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(InputError, match="push needs a token of the Hub that may write"):
        push()
    assert UploadHub.repositories == {}


@pytest.mark.usefixtures("upload_hub")
def test_a_hub_that_cannot_be_reached_is_named(pushed_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(RunFailed, match=r"push own/wiki: the upload failed: .*; nothing changed here: "):
        push_model(str(pushed_model), "own/wiki", private=False, update=False)
