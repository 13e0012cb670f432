"""Shared by all tests: few threads, no network, a text of our own, and real data where a person has put them."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

# Set before anything imports torch, and inherited by the commands that tests start. More threads than this only slow
# the small tensors of tests down, and no test may ask a model hub for anything.
_SPREAD = "PYTEST_XDIST_WORKER" in os.environ  # one process for each core, a thread each
os.environ.setdefault("OMP_NUM_THREADS", "1" if _SPREAD else str(min(2, os.cpu_count() or 1)))
os.environ.setdefault("MPLBACKEND", "agg")
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tests have a cache of their own, apart from the user's."""
    os.environ["BERTWRIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """No file is waited for until it is on the disk, since no test cuts the power."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        yield


def pytest_collection_finish() -> None:
    """Measure the products of this machine once in a process, where a test imports what measures them."""
    if hardware := sys.modules.get("bertwright.training.hardware"):
        hardware.__dict__["measure_peak_flops"] = _measured_once(hardware.measure_peak_flops)


def _measured_once(measure: Callable[..., list[float]]) -> Callable[..., list[float]]:
    """Return the function of the same results, which keeps those of large products."""
    kept: dict[str, list[float]] = {}

    def measured(dtypes: Sequence[Any], shape: tuple[int, int, int], **options: Any) -> list[float]:
        key = f"{dtypes} {shape} {options}"
        if key not in kept:
            rates = measure(dtypes, shape, **options)
            if min(shape) < 1000:
                return rates
            kept[key] = rates
        return list(kept[key])

    return measured


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class of an empty store in memory, `faulty://`, and an empty cache of this test's own."""
    fsspec = pytest.importorskip("fsspec")
    from tests.support.stores import FaultyStore

    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    FaultyStore.reset()
    yield FaultyStore
    FaultyStore.reset()


@pytest.fixture(scope="session")
def own_text() -> Path:
    """A small text file in our own words: documents parted by blank lines, each line a paragraph."""
    return ROOT / "tests" / "fixtures" / "own_text.txt"


@pytest.fixture(scope="session")
def own_tokenizer(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> Path:
    """A folder with 500 pieces learned from that text; no test writes to it."""
    from bertwright.text.wordpiece import train_wordpiece

    folder = tmp_path_factory.mktemp("own") / "tok"
    train_wordpiece([own_text.read_text("utf-8")], vocab_size=500).save(folder)
    return folder


@pytest.fixture(scope="session")
def own_corpus(own_tokenizer: Path, own_text: Path) -> Path:
    """The text as a corpus of those pieces; no test writes to it."""
    from bertwright.corpus.build import build_corpus

    folder = own_tokenizer.with_name("corpus")
    build_corpus([own_text], tokenizer=own_tokenizer, out=folder, workers=1)
    return folder


@pytest.fixture(scope="session")
def places_tokenizer(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> Path:
    """A folder with 500 pieces learned from that text and from the places of the example records."""
    from bertwright.text.wordpiece import train_wordpiece
    from tests.support.texts import PLACES

    folder = tmp_path_factory.mktemp("places") / "tok"
    train_wordpiece([own_text.read_text("utf-8"), *PLACES * 3], vocab_size=500).save(folder)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    """Write bytes, a text, or anything else as JSON to a file of that name; return its path."""

    def save(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return save


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data (enwiki, glue, vocab, …), which are not part of the project; skips where it is absent."""
    named = os.environ.get("BERTWRIGHT_DATA")
    if named:
        if not Path(named).is_dir():
            pytest.fail(f"BERTWRIGHT_DATA={named} is not a folder")
        return Path(named)
    beside = ROOT.parent / "shared" / "data"
    if not beside.is_dir():
        pytest.skip(f"needs real data: set BERTWRIGHT_DATA to their folder, or put them in {beside}")
    return beside
