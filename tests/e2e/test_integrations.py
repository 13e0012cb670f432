"""The blocks of docs/integrations.md with the packages that they name; a package that is absent skips its test."""

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.vector_settings import VectorSettings
from bertwright.serving.predictor import Predictor, load
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.tagging.model import Tagger
from bertwright.tasks.tagging.spec import TaggingTask
from tests.support.encoders import save_classifier, small_classifier
from tests.support.pages import ROOT, python_blocks
from tests.support.running import running
from tests.support.vectors import write_vector_model

BLOCKS = [*python_blocks((ROOT / "docs" / "integrations.md").read_text("utf-8"))]
TEXTS = ["A fox by the sea.", "Rain."]
PROMPTS = {"query": "to ask: ", "document": "to find: ", "other": "the sea: "}
TAGS = TaggingTask(name="ner", scheme="iob2", labels=("O", "B-PER", "I-PER"))
FILMS = ClassificationTask(name="t", text=("text",), labels=("bad", "good"))
RELEVANCE = FILMS.model_copy(update={"text": ("query", "document"), "labels": ("irrelevant", "relevant")})


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    """Models of random weights under the names of the page; the tagger answers B-PER for every word."""
    page_folder = tmp_path_factory.mktemp("integrations")
    settings = VectorSettings(normalize=True, widths=(8,), prompts=PROMPTS, include_prompt=False)
    write_vector_model(page_folder / "minilm", own_tokenizer, settings)
    config = open_model(str(page_folder / "minilm")).config
    assert isinstance(config, EncoderConfig)
    for name, task in {"films": FILMS, "reranker": RELEVANCE}.items():
        save_classifier(page_folder / name, small_classifier(config, 2), task, own_tokenizer, 64)
    tagger = Tagger(config, 3)
    with torch.no_grad():
        tagger.classifier.linear.bias.copy_(torch.tensor([0.0, 99.0, 0.0]))
    extra = {"task": TAGS.model_dump(mode="json"), "max_length": 64}
    common: dict[str, Any] = {"config": config, "tokenizer": own_tokenizer, "labels": TAGS.labels}
    save_model(page_folder / "names", tagger, architecture="BertForTokenClassification", extra=extra, **common)
    return page_folder


@pytest.fixture(autouse=True)
def _in_folder(page_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page_folder)


@pytest.fixture(scope="module")
def page_models(page_folder: Path) -> dict[str, Predictor]:
    return {name: load(page_folder / name, precision="fp32") for name in ("minilm", "reranker")}


@pytest.fixture(scope="module")
def port(page_models: dict[str, Predictor]) -> Iterator[int]:
    with running(page_models, token="any") as port:
        yield port


def run_block(package: str, module: str, names: dict[str, Any] | None = None, *, port: int = 8000) -> dict[str, Any]:
    """Run the page's block that imports from `module` of a package; return its names."""
    pytest.importorskip(package)
    (code,) = (code for code in BLOCKS if f"from {module} import" in code or f"\nimport {module}\n" in f"\n{code}\n")
    names = {} if names is None else names
    exec(compile(code.replace("localhost:8000", f"localhost:{port}"), module, "exec"), names)
    return names


def test_every_block_has_a_test() -> None:
    modules = ("spacy.language", "langchain_core", "langchain_openai", "llama_index", "from openai", "huggingface_hub")
    assert [sum(module in code for code in BLOCKS) for module in modules] == [1] * len(modules)
    assert len(BLOCKS) == len(modules) + 1  # spaCy has two


def test_spacy(page_folder: Path) -> None:
    """Entities take whole tokens of spaCy: its "do" and "n't" are "don", "'" and "t" for the model."""
    names = run_block("spacy", "spacy.language", {"texts": ["I don't walk.", "", "Rain"]})
    for name in ("names", "films"):
        (page_folder / "tuned").unlink(missing_ok=True)
        (page_folder / "tuned").symlink_to(page_folder / name)
        run_block("spacy", "spacy", names)
        names[name] = names["docs"]
    assert [[ent.text for ent in doc.ents] for doc in names["names"]] == [["I", "don't", "walk", "."], [], ["Rain"]]
    assert {ent.label_ for doc in names["names"] for ent in doc.ents} == {"PER"}
    answers = load(page_folder / "films")(names["texts"])
    for doc, answer in zip(names["films"], answers, strict=True):
        assert doc.cats == pytest.approx(answer.probabilities, abs=1e-5)
    nlp = names["nlp"]
    assert nlp("Rain").cats == pytest.approx(answers[2].probabilities, abs=1e-5)
    spacy = importlib.import_module("spacy")
    nlp.to_disk(page_folder / "pipeline")
    assert spacy.load(page_folder / "pipeline")("Rain").cats == pytest.approx(answers[2].probabilities, abs=1e-5)
    nlp.add_pipe("bertwright", name="other", first=True, config={"model": "names"})
    both = nlp("Rain")
    assert ([ent.text for ent in both.ents], sorted(both.cats)) == (["Rain"], ["bad", "good"])


def expected(page_models: dict[str, Predictor]) -> tuple[Any, Any]:
    """Return the vectors of `TEXTS` as documents, and that of the first as a query."""
    model = page_models["minilm"]
    return model.vectors(TEXTS, prompt=PROMPTS["document"]), model.vectors(TEXTS[0], prompt=PROMPTS["query"])


def test_langchain(page_models: dict[str, Predictor]) -> None:
    embeddings = run_block("langchain_core", "langchain_core.embeddings")["embeddings"]
    documents, query = expected(page_models)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), documents, atol=0.02)  # precision auto
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), query, atol=0.02)
    assert embeddings.embed_documents([]) == []
    store = importlib.import_module("langchain_core.vectorstores").InMemoryVectorStore(embeddings)
    store.add_texts(TEXTS)
    best = int(np.argmax(documents @ query))
    assert store.similarity_search(TEXTS[0], k=1)[0].page_content == TEXTS[best]


def test_langchain_openai(page_models: dict[str, Predictor], port: int) -> None:
    remote = run_block("langchain_openai", "langchain_openai", port=port)["remote"]
    np.testing.assert_allclose(remote.embed_documents(TEXTS), page_models["minilm"].vectors(TEXTS), atol=1e-5)


def test_llama_index(page_models: dict[str, Predictor]) -> None:
    embed_model = run_block("llama_index.core", "llama_index.core.embeddings")["embed_model"]
    documents, query = expected(page_models)
    np.testing.assert_allclose(embed_model.get_text_embedding_batch(TEXTS), documents, atol=0.02)
    np.testing.assert_allclose(embed_model.get_text_embedding(TEXTS[1]), documents[1], atol=0.02)
    np.testing.assert_allclose(embed_model.get_query_embedding(TEXTS[0]), query, atol=0.02)
    np.testing.assert_allclose(asyncio.run(embed_model.aget_query_embedding(TEXTS[0])), query, atol=0.02)


def test_openai(page_models: dict[str, Predictor], port: int) -> None:
    names = run_block("openai", "openai", port=port)
    openai, client, model = importlib.import_module("openai"), names["client"], page_models["minilm"]
    create = client.embeddings.create
    vectors = model.vectors(TEXTS)
    np.testing.assert_allclose(names["vectors"], vectors, atol=1e-5)
    assert names["names"] == ["minilm", "reranker"]
    plain = create(model="minilm", input=TEXTS[0], encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, vectors[0], atol=1e-5)
    packed = create(model="minilm", input=TEXTS[0], encoding_format="base64").data[0].embedding
    values = (
        packed
        if isinstance(packed, list)
        else np.frombuffer(importlib.import_module("base64").b64decode(packed), "<f4")
    )
    np.testing.assert_allclose(values, vectors[0], atol=1e-5)
    short = create(model="minilm", input=TEXTS, dimensions=8, extra_body={"prompt_name": "query"})
    queries = model.vectors(TEXTS, prompt_name="query")
    np.testing.assert_allclose([each.embedding for each in short.data], queries[:, :8], atol=1e-5)
    assert short.usage.total_tokens > 4
    entry = client.models.retrieve("minilm")
    assert (entry.id, entry.owned_by, entry.object) == ("minilm", "bertwright", "model")
    assert entry.created > 1_700_000_000
    with pytest.raises(openai.NotFoundError, match="there is no model 'nix'"):
        create(model="nix", input=TEXTS)
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions 9: expected 48"):
        create(model="minilm", input=TEXTS, dimensions=9)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=str(client.base_url), api_key="wrong", max_retries=0).models.list()
    client.close()


def test_the_client_of_the_hub(page_models: dict[str, Predictor], port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # offline it does not reach localhost
    names = run_block("huggingface_hub", "huggingface_hub", port=port)
    extract, model = names["client"].feature_extraction, page_models["minilm"]
    np.testing.assert_allclose(names["vectors"], model.vectors(TEXTS), atol=1e-5)
    short = extract(TEXTS[0], prompt_name="query", dimensions=8, normalize=False, truncate=True)
    assert short.shape == (1, 8)
    np.testing.assert_allclose(short[0], model.vectors(TEXTS[0], prompt_name="query")[:8], atol=1e-5)
    error = importlib.import_module("huggingface_hub.errors").HfHubHTTPError
    with pytest.raises(error, match="422"):
        extract("rain " * 90, truncate=False)
