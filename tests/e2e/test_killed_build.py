"""A corpus build killed ten times at random moments and started again ends in the bytes of an undisturbed one."""

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertwright.corpus.checks import verify
from bertwright.text.wordpiece import train_wordpiece
from tests.support.folders import contents
from tests.support.seeds import drawn_moments

KILLS = 10
SCRIPT = """
import sys, time
from bertwright.corpus import inputs as reading
from bertwright.corpus.build import build_corpus
from bertwright.corpus.resume import UnfinishedBuild

save = UnfinishedBuild.save

def save_and_wait(build, state):
    save(build, state)
    if 0 < int(sys.argv[3]) <= len(state.shards):
        time.sleep(600)

if __name__ == "__main__":
    reading.CHUNK_CHARACTERS = 20_000
    UnfinishedBuild.save = save_and_wait
    build_corpus(sys.argv[4:], tokenizer=sys.argv[1], out=sys.argv[2], workers=2, shard_tokens=10_000, skip=True)
"""
"""Arguments: tokenizer, corpus, number of whole shards at which the build waits to be killed (0: none), inputs."""


def whole_shards(out: Path) -> int:
    state = out / ".building" / "build.json"
    try:
        return len(json.loads(state.read_text())["state"]["shards"])
    except FileNotFoundError:
        return 0


@pytest.mark.slow
def test_ten_kills_change_no_byte_of_a_corpus(own_text: Path, tmp_path: Path) -> None:
    original = own_text.read_text()
    train_wordpiece([original], vocab_size=700).save(tmp_path / "tokenizer")
    blocks = original.split("\n\n")
    numbered = [f"Passage {n} of {len(blocks)}. {blocks[n % len(blocks)]}" for n in range(4000)]
    with gzip.open(tmp_path / "a.txt.gz", "wb") as stream:
        stream.write("\n\n".join(numbered[:1500]).encode())
    lines = [json.dumps({"text": text}) for text in numbered[1000:3000]]
    lines[700] = "not a record"
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    (tmp_path / "c.txt").write_text("\n\n".join(numbered[3000:]))
    inputs = [str(tmp_path / name) for name in ("a.txt.gz", "b.jsonl", "c.txt")]
    (tmp_path / "build.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "build.py"), str(tmp_path / "tokenizer")]

    calm, torn = tmp_path / "calm" / "corpus", tmp_path / "torn" / "corpus"
    subprocess.run([*command, str(calm), "0", *inputs], check=True, capture_output=True)
    manifest = verify(calm).manifest
    shards = len(manifest.shards)
    assert shards > 2 * KILLS + 1  # at most two between two kills, and the last one
    assert manifest.duplicates is not None
    assert manifest.duplicates.documents > 400  # the two files overlap
    assert manifest.skipped.records == 1

    with drawn_moments() as moments:
        for _ in range(KILLS):
            kill_later([*command, str(torn)], inputs, torn, pause=moments.uniform(0, 0.2))
        subprocess.run([*command, str(torn), "0", *inputs], check=True, capture_output=True)
        assert contents(torn) == contents(calm)


def kill_later(command: list[str], inputs: list[str], out: Path, *, pause: float) -> None:
    """Continue the build, and kill it `pause` seconds after its next whole shard; a faster one waits for that."""
    begun = whole_shards(out)
    with subprocess.Popen([*command, str(begun + 2), *inputs], stderr=subprocess.DEVNULL) as running:
        try:
            deadline = time.monotonic() + 120
            while whole_shards(out) == begun:
                assert running.poll() is None, f"ended with {running.returncode} after {begun} shards"
                assert time.monotonic() < deadline, f"no shard in two minutes after the first {begun}"
                time.sleep(0.005)
            time.sleep(pause)
        finally:
            running.kill()
    assert running.returncode == -signal.SIGKILL
