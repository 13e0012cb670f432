"""Load over loopback: requests a second and how long one takes, at 1, 8 and 64 clients.

python -m benchmarks.studies.serving [--sizes tiny,base] [--clients 1,8,64] [--seconds 10] [--repeats 2] [--json]
python -m benchmarks.studies.serving --minutes 10 [--sizes base]      how much memory the service takes meanwhile

A classifier of random weights, which is as fast as any, sentences of 5 to 60 words, one in a request, each client
sending the next when it was answered. Beside `bertwright serve`: the same without batches, and transformers behind
FastAPI as its examples write it. The clients take their share of the same cores. A rate counts the answers that come
before the end; `late` are those after it, whose latencies count, and `refused` those with another status than 200.
"""

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import finish, parser
from bertwright.model.config import size_config
from bertwright.model.encoder import init_weights
from bertwright.model.folder import save_model
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.classification.spec import SST2
from bertwright.text.wordpiece import train_wordpiece

ROOT = Path(__file__).resolve().parent.parent.parent
PLAIN = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

class Asked(BaseModel):
    inputs: list[str]

answer = pipeline("text-classification", model=sys.argv[1], top_k=None, device="cpu")
app = FastAPI()

@app.post("/v1/predict")
def predict(asked: Asked):
    return {"results": answer(asked.inputs)}

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""
HEAD = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
OURS, UNBATCHED, PEER = "bertwright", "bertwright, one input at a time", "transformers behind FastAPI"


def make_model(size: str, folder: Path) -> tuple[Path, list[str]]:
    """A classifier of random weights, and sentences for it."""
    text = " ".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    words = re.findall(r"[A-Za-z]{2,}", text)
    tokenizer = train_wordpiece([text], vocab_size=4000)
    tokenizer.save(folder / "tokenizer")
    config = size_config(size, tokenizer.vocab_size)
    model = Classifier(config, 2)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    save_model(
        folder / size,
        model,
        config=config,
        tokenizer=folder / "tokenizer",
        architecture="BertForSequenceClassification",
        labels=SST2.labels,
        extra={"task": SST2.model_dump(mode="json"), "max_length": 128},
    )
    draw = random.Random(0)
    return folder / size, [" ".join(draw.choices(words, k=draw.randint(5, 60))) for _ in range(300)]


@contextmanager
def running(name: str, model: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a service; end it after the block."""
    command = [sys.executable, "-m", "bertwright", "serve", "--model", str(model), "--port", str(port)]
    command += ["--precision", "fp32", "--max-waiting-tokens", "1000000"]
    if name == UNBATCHED:
        command += ["--batch-tokens", "1"]
    if name == PEER:
        command = [sys.executable, "-c", PLAIN, str(model), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        for _ in range(600):
            try:
                asyncio.run(load(port, ["a first one"] * 4, clients=1, seconds=0.5))
                break
            except OSError:
                time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(60)


async def load(port: int, texts: Sequence[str], *, clients: int, seconds: float) -> tuple[list[float], Counter[str]]:
    """Return the seconds of each request that was answered with 200, and the numbers of `late` and `refused` ones."""
    end = time.perf_counter() + seconds
    times: list[float] = []
    counts = Counter(late=0, refused=0)

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        position = number * 37
        while time.perf_counter() < end:
            body = json.dumps({"inputs": [texts[position % len(texts)]]}).encode()
            position += 1
            head = f"{HEAD}{len(body)}"
            begin = time.perf_counter()
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            assert length, answer
            await reader.readexactly(int(length[1]))
            answered = time.perf_counter()
            if not answer.startswith(b"HTTP/1.1 200"):
                counts["refused"] += 1
                continue
            times.append(answered - begin)
            counts["late"] += answered > end
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return times, counts


def figures(times: Sequence[float], counts: Counter[str], seconds: float) -> dict[str, float]:
    """Requests a second, milliseconds at three shares of them, and the counts."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    rate = (len(times) - counts["late"]) / seconds
    return {"rate": rate, "p50": 1e3 * cuts[49], "p95": 1e3 * cuts[94], "p99": 1e3 * cuts[98], **counts}


def compare(size: str, clients: Sequence[int], *, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """A row for each peer and number of clients."""
    turns_of: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model, texts = make_model(size, Path(folder))
        for turn in range(repeats):
            for position, name in enumerate((OURS, UNBATCHED, PEER)):
                with running(name, model, 18_100 + 10 * turn + position) as _:
                    for number in clients:
                        answers = asyncio.run(
                            load(18_100 + 10 * turn + position, texts, clients=number, seconds=seconds)
                        )
                        turns_of.setdefault((name, number), []).append(figures(*answers, seconds))
                        print(f"{size}, {number} clients, {name}: {turns_of[name, number][-1]}", file=sys.stderr)
    return [_row(size, number, peer, turns_of) for number in clients for peer in (UNBATCHED, PEER)]


def _row(size: str, clients: int, peer: str, turns_of: dict[tuple[str, int], list[dict[str, float]]]) -> dict[str, Any]:
    ours, theirs = turns_of[OURS, clients], turns_of[peer, clients]
    ratios = [mine["rate"] / other["rate"] for mine, other in zip(ours, theirs, strict=True)]
    medians = {
        f"{name} {cut}": statistics.median(one[cut] for one in turns)
        for name, turns in (("ours", ours), ("theirs", theirs))
        for cut in ("p50", "p95", "p99", "late", "refused")
    }
    return {
        "work": f"{size}, {clients} clients",
        "peer": peer,
        "unit": "requests/s",
        "ours": statistics.median(one["rate"] for one in ours),
        "theirs": statistics.median(one["rate"] for one in theirs),
        "ratio": statistics.median(ratios),
        "spread": max(ratios) - min(ratios),
        **medians,
    }


def memory(size: str, minutes: float) -> dict[str, Any]:
    """Resident megabytes of the service under the load of 8 clients, each half minute."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        model, texts = make_model(size, Path(folder))
        with running(OURS, model, 18_200) as process:
            for _ in range(max(2, round(2 * minutes))):
                asyncio.run(load(18_200, texts, clients=8, seconds=30))
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                taken.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6))
                print(f"{taken[-1]} MB", file=sys.stderr)
    return {"size": size, "minutes": minutes, "megabytes": taken}


def main() -> None:
    """Measure and print."""
    given_parser = parser(__doc__, threads=False)
    given_parser.set_defaults(repeats=2)
    given_parser.add_argument("--sizes", default="tiny,base")
    given_parser.add_argument("--clients", default="1,8,64")
    given_parser.add_argument("--seconds", type=float, default=10.0)
    given_parser.add_argument("--minutes", type=float)
    options = given_parser.parse_args()
    sizes = options.sizes.split(",")
    if options.minutes:
        finish(options, [], packages=(), memory=[memory(size, options.minutes) for size in sizes])
        return
    clients = [int(number) for number in options.clients.split(",")]
    rows = [row for size in sizes for row in compare(size, clients, seconds=options.seconds, repeats=options.repeats)]
    finish(options, rows, packages=("fastapi", "uvicorn", "transformers"))


if __name__ == "__main__":
    main()
