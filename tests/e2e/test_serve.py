"""`bertwright serve` as a process: what clients that are slow, broken, too many or gone do to it, and how it ends."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from bertwright.errors import InputError, legible
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import save_model
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.serving.server import _listening_socket
from bertwright.serving.settings import ServeSettings
from bertwright.text.wordpiece import train_wordpiece
from tests.support.commands import run_bertwright


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> str:
    folder = tmp_path_factory.mktemp("served")
    words = train_wordpiece([own_text.read_text("utf-8")], vocab_size=400)
    words.save(folder / "tok")
    config = EncoderConfig(
        vocab_size=words.vocab_size, hidden=64, layers=2, heads=4, intermediate=96, max_positions=128
    )
    save_model(
        folder / "lm",
        PretrainingModel(config, second_sentence="next"),
        config=config,
        tokenizer=folder / "tok",
        architecture="BertForPreTraining",
    )
    return str(folder / "lm")


class Served:
    """The command, its port, and what it wrote."""

    def __init__(self, *words: str, folder: Path | None = None) -> None:
        command = [sys.executable, "-m", "bertwright", *words, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}, cwd=folder)
        assert self.process.stderr
        first = self.process.stderr.readline()
        while "serving at" not in first:
            assert first, "it ended"
            first = self.process.stderr.readline()
        self.port = int(first.split("http://127.0.0.1:")[1].split()[0])
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.ask("GET", "/health")

    def _read(self) -> None:
        assert self.process.stderr
        self.lines.extend(self.process.stderr)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        for _ in range(100):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
                content = json.dumps(body) if body is not None else None
                connection.request(method, path, content, {"content-type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                connection.close()
                return answer.status, json.loads(text) if answer.headers["content-type"] == "application/json" else text
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise AssertionError("it does not listen")

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        code = self.process.wait(30)
        self._reader.join()
        assert self.process.stderr
        self.process.stderr.close()
        return code


@pytest.fixture(scope="module")
def served(model: str) -> Iterator[Served]:
    service = Served("serve", "--model", model)
    yield service
    assert service.stop() == 0, service.lines
    assert not [line for line in service.lines if not line.startswith("{")], service.lines  # JSON and nothing else


FILL = {"inputs": ["the [MASK] of the harbour"]}


def test_it_answers_and_logs(served: Served) -> None:
    status, reply = served.ask("POST", "/v1/fill", FILL)
    assert status == 200
    assert len(reply["results"][0]["masks"]) == 1
    assert served.ask("GET", "/")[0] == 200


def test_demo_has_a_model_where_nothing_was_made(tmp_path: Path) -> None:
    served = Served("demo", "--no-browser", folder=tmp_path)
    try:
        assert served.ask("GET", "/health")[1]["models"] == ["small-wiki"]
    finally:
        served.stop()


def test_a_client_that_goes_away_is_forgotten(served: Served) -> None:
    body = json.dumps({"inputs": ["the [MASK]"] * 200}).encode()
    head = f"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
    deadline = time.monotonic() + 60
    while (status := served.ask("POST", "/v1/fill", FILL)[0]) == 503 and time.monotonic() < deadline:
        time.sleep(0.2)  # what they left behind may fill the queue of a busy machine for a while
    assert status == 200
    while sum('"status": 499' in line for line in served.lines) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert any('"status": 499' in line for line in served.lines)


@pytest.mark.parametrize(
    ("status", "path", "body"),
    [
        *((200, path, None) for path in ("/", "/health", "/metrics", "/docs", "/openapi.json", "/v1/models")),
        (200, "/v1/predict", FILL),
        (200, "/v1/fill", FILL),
        (200, "/v1/fill", {"inputs": FILL["inputs"] * 250}),  # longer than a client without an answer stays quiet
        (200, "/v1/embeddings", {"input": "the harbour"}),
        (200, "/v1/next-sentence", {"first": "the harbour", "second": "rain"}),
        (200, "/v1/inside", {"text": "the harbour"}),
        (422, "/v1/answer", {"question": "who", "context": "the harbour"}),
        (404, "/v1/nowhere", None),
        (404, "/v1/fill", {"model": "another", **FILL}),
        (413, "/v1/fill", {"inputs": ["a" * 2_000_000]}),
    ],
)
def test_a_client_that_only_ends_its_sending_is_answered(served: Served, status: int, path: str, body: Any) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{'POST' if content else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as client:
        client.sendall(head.encode() + content)
        client.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(client)
        answer.begin()  # passes over "100 Continue"
        assert (answer.status, len(answer.read())) == (status, int(answer.headers["content-length"]))
        assert client.recv(1) == b""
        answer.close()


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("rest", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize(
    ("version", "lines"),
    [
        (b"1.1", b"Content-Length: 5\r\n" + CHUNKED),
        (b"1.1", CHUNKED + b"Content-Length: 5\r\n"),
        (b"1.1", b"content-length: 5\r\ntransfer-encoding: Chunked\r\n"),
        (b"1.1", b"Content-Length: 0\r\n" + CHUNKED),
        (b"1.1", b"Content-Length: 5\r\nContent-Length: 6\r\n"),
        (b"1.1", b"Content-Length: 5, 6\r\n"),
        (b"1.1", b"Content-Length: +5\r\n"),
        (b"1.1", b"Transfer-Encoding: chunked, identity\r\n"),
        (b"1.1", b"Transfer-Encoding: identity\r\n"),
        (b"1.1", CHUNKED + CHUNKED),
        (b"1.1", b"Transfer-Encoding : chunked\r\n"),
        (b"1.1", b"Transfer-Encoding:\x0bchunked\r\n"),
        (b"1.1", b"Transfer-Encoding:\r\n chunked\r\n"),
        (b"1.1", b"X: a\r\n Transfer-Encoding: chunked\r\n"),
        (b"1.1", b"X: a\rTransfer-Encoding: chunked\r\n"),
        (b"1.0", CHUNKED),
    ],
)
def test_a_body_whose_end_can_be_read_in_two_ways_is_refused(
    served: Served, version: bytes, lines: bytes, rest: bytes
) -> None:
    """The connection is closed, and what follows is no request."""
    head = b"POST /v1/fill HTTP/" + version + b"\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=15) as client:
        client.sendall(head + lines + b"\r\n0\r\n\r\n" + rest)
        answer = b""
        while more := client.recv(1000):
            answer += more
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer.lower()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a browser that speaks https
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_a_client_that_talks_nonsense_does_no_harm(served: Served, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=15) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = client.recv(1000)
    assert not answer or b" 4" in answer[:13], answer
    assert served.ask("POST", "/v1/fill", FILL)[0] == 200


@pytest.mark.parametrize("size", [3_000_000, 30_000_000])
def test_too_large_a_request_is_answered_before_it_ends(served: Served, size: int) -> None:
    """A client that sends it all before it reads gets the answer, and no broken connection."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}/v1/fill", b" " * size, {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError, match="413") as refused, urllib.request.urlopen(request, timeout=30):
        pass
    refused.value.close()


def test_slow_clients_are_let_go(model: str) -> None:
    """A client never ends its first line, another never ends its body; the others are answered meanwhile."""
    code = (
        "import sys; from bertwright.serving import server, settings; models = server.open_models"
        f"({{'lm': {model!r}}}, precision='fp32'); server.serve(models, settings.ServeSettings(port=0, "
        "read_timeout=1.0), ready=lambda url: print(url, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    port = int(process.stdout.readline().rsplit(":", 1)[1])
    try:
        begun = [
            b"GET /hea",
            b"POST /v1/fill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
        ]
        clients = [socket.create_connection(("127.0.0.1", port), timeout=15) for _ in range(6)]
        for number, client in enumerate(clients):
            client.sendall(begun[number % 2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        connection.close()
        answers = []
        for client in clients:
            answer = b""
            while more := client.recv(1000):
                answer += more
            answers.append(answer)
            client.close()
        assert answers[0::2] == [b""] * 3
        assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers[1::2]), answers
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def test_it_finishes_what_it_accepted(model: str) -> None:
    served = Served("serve", "--model", model, "--batch-tokens", "16")
    replies: list[Any] = []
    body = {"inputs": ["the [MASK] of the harbour and the [MASK] of the garden"] * 200}

    def ask() -> None:
        try:
            replies.append(served.ask("POST", "/v1/fill", body)[0])
        except OSError as error:  # one that came when it listened no more
            replies.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while not (waiting := _waiting(served)) and time.monotonic() < deadline:
        time.sleep(0.01)
    code = served.stop()
    for thread in threads:
        thread.join()
    assert waiting, f"no request waited in a minute; the answers: {replies}"
    assert code == 0, served.lines
    assert len(replies) == 3
    assert 200 in replies
    assert not [one for one in replies if one not in (200, 503) and not isinstance(one, OSError)]
    assert not [line for line in served.lines if not line.startswith("{")], served.lines


def _waiting(served: Served) -> float:
    """Tokens that wait to be computed."""
    _, text = served.ask("GET", "/metrics")
    (line,) = (line for line in text.decode().splitlines() if line.startswith("bertwright_waiting_tokens "))
    return float(line.split()[1])


def test_a_port_that_is_taken_is_reported(model: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        completed = run_bertwright("serve", "--model", model, "--port", port, timeout=60)
    assert completed.returncode == 2
    assert f"--port {port}: another program listens there; name another port, or 0 for any" in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], "--model: expected at least one model folder"),
        (["serve", "--model", "="], "expected MODEL or NAME=MODEL"),
        (["serve", "--model", "a=x", "--model", "a=y"], "there are two folders called a"),
        (["serve", "--model", "nowhere"], "nowhere: not a model folder"),
        (["serve", "--model", "search/learning-rate=0.001"], "search/learning-rate=0.001: not a model folder"),
        (["serve", "--model", "a/name=nowhere"], "nowhere: not a model folder"),
        (["serve", "--model", "small-wiki", "--host", "a.invalid"], "--host a.invalid --port 8000: "),
        (["serve", "--model", "x", "--port", "99999"], "--port 99999: Input should be less than or equal to 65535"),
    ],
)
def test_bad_arguments_are_reported(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "search" / "learning-rate=0.001").mkdir(parents=True)  # as a search calls its folders
    completed = run_bertwright(*arguments, timeout=60, cwd=tmp_path)
    assert completed.returncode == 2, completed.stderr
    assert words in completed.stderr


def test_the_description_holds(served: Served) -> None:
    """schemathesis: requests made up from our own OpenAPI description; no 5xx, and answers are as described."""
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{served.port}/openapi.json")
    seen = []
    for operation in (result.ok() for result in schema.get_all_operations()):
        for case in _cases(operation, 25):
            response = case.call()
            assert response.status_code < 500, (operation.label, response.status_code, response.text)
            # what a model takes (a text with [MASK], a layer that it has) the description cannot say
            case.validate_response(response, excluded_checks=[positive_data_acceptance])
            seen.append(operation.label)
    assert len(set(seen)) >= 9


def _cases(operation: Any, count: int) -> list[Any]:
    from hypothesis import HealthCheck, Phase, given, settings

    cases: list[Any] = []

    @given(case=operation.as_strategy())
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    def collect(case: Any) -> None:
        cases.append(case)

    collect()
    return cases


@pytest.mark.parametrize(
    "missing", ["fastapi", *(pytest.param(name, marks=pytest.mark.slow) for name in ("uvicorn", "prometheus_client"))]
)
def test_a_missing_extra_is_reported_with_the_line_that_installs_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from bertwright.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "--model", "anything"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert completed.returncode == 2
    assert "serving needs the extra 'serve': pip install 'bertwright[serve]'" in completed.stderr


@pytest.mark.parametrize("host", [os.fsdecode(b"\xff"), "a\0b"])
def test_a_host_that_does_not_exist_is_reported(host: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--host {legible(host)}: expected the name or address of a host")):
        _listening_socket(ServeSettings(host=host))


def test_answers_wait_for_no_fuller_packet() -> None:
    with _listening_socket(ServeSettings(port=0)) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.proto == socket.IPPROTO_TCP  # which asyncio asks for before it sets TCP_NODELAY
