"""A corpus build killed ten times at random moments and started again ends in the bytes of an undisturbed one."""

import gzip
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertwright.corpus.checks import verify
from bertwright.text.wordpiece import train_wordpiece
from tests.support.folders import contents

KILLS = 10
SCRIPT = """
import sys
from bertwright.corpus import inputs as reading
from bertwright.corpus.build import build_corpus
if __name__ == "__main__":
    reading.CHUNK_CHARACTERS = 20_000
    build_corpus(sys.argv[3:], tokenizer=sys.argv[1], out=sys.argv[2], workers=2, shard_tokens=10_000, skip=True)
"""


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
    subprocess.run([*command, str(calm), *inputs], check=True, capture_output=True)
    manifest = verify(calm).manifest
    shards = len(manifest.shards)
    assert shards > 2 * KILLS
    assert manifest.duplicates is not None
    assert manifest.duplicates.documents > 400  # the two files overlap
    assert manifest.skipped.records == 1

    moments = random.Random(time.time_ns())
    kills = 0
    for target in [0, *sorted(moments.sample(range(1, shards - 1), KILLS - 1))]:
        with subprocess.Popen([*command, str(torn), *inputs], stderr=subprocess.DEVNULL) as running:
            deadline = time.monotonic() + 120
            while whole_shards(torn) < target and running.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(moments.random() * 0.2)
            running.kill()
        if running.returncode == 0:  # it was faster than the clock: nothing is left to kill
            break
        assert running.returncode == -signal.SIGKILL
        kills += 1
        if (torn / "manifest.json").exists():  # killed between its last write and cleaning up
            break
    assert kills >= KILLS - 2
    if (torn / ".building").exists():
        subprocess.run([*command, str(torn), *inputs], check=True, capture_output=True)
    assert contents(torn) == contents(calm)
