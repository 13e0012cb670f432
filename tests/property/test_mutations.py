"""Whatever stands in a file: it is read or it is refused, quickly and in bounded memory; nothing else happens."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.corpus.build import build_corpus
from bertwright.model.bert import Bert
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import save_model
from bertwright.objectives.sentence_pairs import PLAN
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer
from tests.support import bundle_writer
from tests.support.mutations import READERS, tried

SLOW = {"tokenizer": 6_000, "vocabulary": 8_000, "config": 8_000, "safetensors": 8_000, "pickle": 8_000}
MANY = 10_500
"""Mutations of each other kind in the slow test: 100,000 and more of all."""


@pytest.fixture(scope="module")
def good_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good file of each kind."""
    tmp_path = tmp_path_factory.mktemp("good")
    words = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    tokenizer = Tokenizer(words, Rules(cased=False, strip_accents=False))
    tokenizer.save(tmp_path / "tok")
    (tmp_path / "text.txt").write_text("a few words. and more of them.\n\nanother text\n\nthe last one", "utf-8")
    build_corpus([tmp_path / "text.txt"], tokenizer=tmp_path / "tok", out=tmp_path / "files", workers=1)
    folder = tmp_path / "files"
    shape = {"vocab_size": len(words), "hidden": 4, "layers": 1, "heads": 1, "intermediate": 8, "max_positions": 8}
    model = Bert(EncoderConfig.model_validate(shape), "BertForMaskedLM")
    save_model(
        tmp_path / "model",
        model,
        config=model.encoder.config,
        tokenizer=tmp_path / "tok",
        architecture="BertForMaskedLM",
    )
    for file in (tmp_path / "model").iterdir():
        file.rename(folder / file.name)
    with (folder / "plan.npy").open("wb") as stream:
        np.save(stream, np.zeros(9, PLAN))
    arrays = {f"bert/layer_{n}/kernel": np.arange(6 + n, dtype=np.float32).reshape(1, -1) for n in range(9)}
    bundle_writer.write_bundle(folder / "m.ckpt", arrays, most=4, compression=1)
    return folder


@pytest.fixture
def good(good_files: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good_files, tmp_path / "files"))


def save_as_pickle(folder: Path, *, old: bool) -> None:
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    (folder / "model.safetensors").unlink()


def check(kind: str, folder: Path, seeds: range) -> None:
    if "pickle" in kind:
        save_as_pickle(folder, old=kind == "old pickle")
    outcome = tried(kind, folder, seeds)
    print(f"\n| {kind} | {len(seeds)} | {outcome.read} read | {outcome.refused} refused | {outcome.largest} MB |")
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.read + outcome.refused == len(seeds)
    assert outcome.refused or kind in ("plan", "data")
    assert outcome.largest < 2000


@pytest.mark.parametrize("kind", READERS)
def test_changed_files_are_read_or_refused(kind: str, good: Path) -> None:
    check(kind, good, range(30))


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_very_many_changed_files(kind: str, good: Path) -> None:
    check(kind, good, range(100, 100 + SLOW.get(kind, MANY)))
