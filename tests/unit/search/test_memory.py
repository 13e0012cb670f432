"""An index in memory: the hits of a folder with the same texts, and texts that are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.model.vector_settings import VectorSettings
from bertwright.search.index import SearchIndex
from bertwright.search.index_files import IndexRow
from bertwright.search.memory import MemoryIndex
from bertwright.search.new_rows import IndexedText
from bertwright.serving.predictor import load
from bertwright.tasks.sentence_vectors import SentenceEncoder, open_sentence_encoder
from tests.support.vectors import write_vector_model

TEXTS = ["A ship sails on the sea.", "Rain falls on the roof.", "The teacher reads a book.", "A ship is on the sea."]
QUERIES = ["a ship on the sea", "rain on the house"]


@pytest.fixture(scope="module")
def memory_model(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "model"
    settings = VectorSettings(prompts={"query": "to ask: ", "document": "a text: "}, normalize=True, max_length=20)
    write_vector_model(folder, own_tokenizer, settings)
    return folder


@pytest.fixture(scope="module")
def memory_encoder(memory_model: Path) -> SentenceEncoder:
    return open_sentence_encoder(str(memory_model), None, "cpu")


def test_hits_are_those_of_a_folder(memory_encoder: SentenceEncoder, memory_model: Path, tmp_path: Path) -> None:
    ids = ["a", "b", "c", "d"]
    rows = [[IndexedText(IndexRow(id, text, {}), "x") for id, text in zip(ids, TEXTS, strict=True)]]
    on_disk, _ = SearchIndex.build(tmp_path / "index", memory_encoder, rows, model=str(memory_model))
    in_memory = MemoryIndex.of_texts(memory_encoder, TEXTS, ids=ids)
    assert in_memory.search(memory_encoder, QUERIES, 3) == on_disk.search(memory_encoder, QUERIES, 3)
    assert len(in_memory) == 4
    narrow = MemoryIndex.of_texts(memory_encoder, TEXTS, width=8)
    assert narrow.segments[0].vectors.shape == (4, 8)
    assert [hit.id for hit in narrow.search(memory_encoder, ["ship"], 9)[0]].count("2") == 1


def test_a_model_searches_texts(memory_model: Path) -> None:
    model = load(memory_model, precision="fp32")
    with pytest.warns(UserWarning, match="2 of 4 texts have more tokens than the model reads, and are cut"):
        index = model.index(TEXTS)
    expected = model.search(QUERIES, index=index, top_k=2)
    assert {hit.text for hit in expected[0]} <= {*TEXTS}
    both: Any = {"index": index, "texts": TEXTS}
    with pytest.raises(InputError, match="expected an index or texts, got both"):
        model.search("ship", **both)
    with pytest.raises(InputError, match="expected an index or texts, got neither"):
        model.search("ship")


def test_a_width_above_that_of_truncated_vectors_is_refused(memory_model: Path, tmp_path: Path) -> None:
    """Earlier versions built such an index: it has its model's fingerprint, and no query could be compared."""
    model = tmp_path / "model"
    shutil.copytree(memory_model, model)
    settings = json.loads((model / "config_sentence_transformers.json").read_text("utf-8"))
    (model / "config_sentence_transformers.json").write_text(json.dumps({**settings, "truncate_dim": 8}), "utf-8")
    encoder = open_sentence_encoder(str(model), None, "cpu")
    with pytest.raises(InputError, match=r"width 16: expected 1 to 8, the size of this model's vectors"):
        MemoryIndex.of_texts(encoder, TEXTS, width=16)
    index = MemoryIndex.of_texts(encoder, TEXTS)
    index.manifest = index.manifest.model_copy(update={"width": 16})
    with pytest.raises(InputError, match=r"the index in memory: build the index again; its width 16: expected 1 to 8"):
        index.search(encoder, QUERIES)


@pytest.mark.filterwarnings("ignore:2 of 4 texts have more tokens")
def test_an_index_and_its_texts_give_the_same_hits(memory_model: Path) -> None:
    model = load(memory_model, precision="fp32")
    index = model.index(TEXTS)
    expected = model.search(QUERIES, index=index, top_k=2)
    assert model.search(QUERIES, texts=TEXTS, top_k=2) == expected
    assert model.search(QUERIES[0], texts=TEXTS, top_k=2) == expected[0]
    assert model.index(TEXTS, ids=["w", "x", "y", "z"]).hits(index.segments[0].vectors[2:3], 1)[0][0].id == "y"


@pytest.mark.parametrize(
    ("texts", "ids", "message"),
    [
        ([], None, "texts: expected at least one text, got none"),
        (["a", " "], None, "text 1: expected a text, got an empty one"),
        (["a", "\ud800"], None, "text 1 holds half of a character"),
        (["a", "b"], ["x"], "ids: expected 2, one for each text, got 1"),
        (["a", "b"], ["x", "x"], "ids: 'x' is there twice"),
        (["a", "b"], ["x", " "], "ids: expected a visible text for each id, got ' '"),
    ],
)
def test_texts_that_cannot_be_searched_are_refused(
    texts: list[str], ids: list[str] | None, message: str, memory_encoder: SentenceEncoder
) -> None:
    with pytest.raises(InputError, match=message):
        MemoryIndex.of_texts(memory_encoder, texts, ids=ids)
