"""Explanations of answers: complete, equal to captum's, and with the word on top on which a label depends."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.errors import InputError
from bertwright.model.bert import Bert
from bertwright.model.config import BackboneConfig
from bertwright.model.encoder import init_weights
from bertwright.model.families.elmo import PairConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import system_config
from bertwright.serving import embedding_path
from bertwright.serving.pipeline import padded_batch
from bertwright.serving.predictor import Predictor, load
from bertwright.serving.results import Explanation
from bertwright.serving.settings import ExplainSettings
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import Classifier, TextBatch, padded
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.tasks.question_answering.spec import SQUAD2
from bertwright.tasks.tagging.model import Tagger
from bertwright.tasks.tagging.spec import TaggingTask
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import classifier_config, save_classifier, small_classifier
from tests.support.processor import needs_bytes
from tests.support.requests import Requests
from tests.support.served import SST, TEXTS

TAGS = TaggingTask(name="ner", scheme="iob2", labels=("O", "B-PER", "I-PER"))
LONG = " ".join(["the tower and the bridge over the river", "a garden behind the library"] * 8)


@pytest.fixture(scope="module")
def explained(
    models: dict[str, Predictor], folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Predictor]:
    """Random models of every kind of task."""
    saved, folder = open_model(folders["sst"]), tmp_path_factory.mktemp("explained")
    squad = SQUAD2.model_copy(update={"question": 16, "stride": 16})
    torch.manual_seed(5)
    tagger = Tagger(saved.config, 3)
    tagger.classifier.linear.bias.data[0] = 1.4  # so that the first word is outside
    kinds: dict[str, tuple[Any, Any, Any, tuple[str, ...]]] = {
        "tags": (TAGS, tagger, "BertForTokenClassification", TAGS.labels),
        "squad": (squad, Bert(saved.config, "BertForQuestionAnswering"), "BertForQuestionAnswering", ()),
        "swag": (SWAG, Classifier(saved.config, 1), "BertForMultipleChoice", ()),
    }
    for name, (task, module, architecture, labels) in kinds.items():
        extra = {"task": task.model_dump(mode="json"), "max_length": 64, "null_threshold": 1e6}
        common: dict[str, Any] = {"config": saved.config, "tokenizer": saved.tokenizer, "labels": labels}
        save_model(folder / name, module, architecture=architecture, extra=extra, **common)
    return models | {name: load(folder / name, precision="fp32") for name in kinds}


INPUTS: dict[str, Any] = {
    "sst": TEXTS[3],
    "pair": (TEXTS[1], TEXTS[3]),
    "many": TEXTS[3],
    "number": TEXTS[1],
    "tags": TEXTS[3],
    "squad": ("who built it?", LONG),
    "swag": (TEXTS[3], ("rain", "a garden", "the quiet harbour")),
}


def check_complete(explanation: Explanation) -> None:
    """Check that the words, and their pieces, add up to the difference of the scores."""
    total = sum(word.score for word in explanation.words)
    assert explanation.difference == explanation.score - explanation.baseline
    assert total == pytest.approx(explanation.difference, abs=1e-3)
    assert explanation.remaining == pytest.approx(explanation.difference - total, abs=1e-9)
    for word in explanation.words:
        assert word.score == pytest.approx(sum(piece.score for piece in word.pieces))


@pytest.mark.parametrize("name", INPUTS)
def test_words_add_up_and_stand_in_the_texts(explained: dict[str, Predictor], name: str) -> None:
    value = INPUTS[name]
    explanation = explained[name].explain(value)
    check_complete(explanation)
    texts = [value] if isinstance(value, str) else [value[0], *value[1]] if name == "swag" else list(value)
    assert {word.input for word in explanation.words} == set(range(len(texts)))
    assert all(word.text == texts[word.input][word.start : word.end] for word in explanation.words)
    assert [word.text for word in explanation.words if word.input == 0] == texts[0].replace("?", " ?").split()
    assert explained[name].explain([value, value]) == [explanation, explanation]
    dropped = explained[name].explain(value, method="occlusion")
    assert (dropped.score, dropped.remaining, dropped.steps) == (explanation.score, None, None)
    assert [replace(word, score=0, pieces=()) for word in dropped.words] == [
        replace(word, score=0, pieces=()) for word in explanation.words
    ]


def log_odds(probability: float) -> float:
    return float(np.log(probability) - np.log1p(-probability))


def test_scores_are_those_of_the_answers(explained: dict[str, Predictor]) -> None:
    for name, explanation in ((name, explained[name].explain(value)) for name, value in INPUTS.items()):
        result = explained[name](INPUTS[name])
        if name in ("sst", "pair"):
            expected = (result.label, log_odds(result.probability), "log-odds")
        elif name == "many":
            best = max(result.probabilities, key=result.probabilities.get)
            expected = (best, log_odds(result.probabilities[best]), "log-odds")
        elif name == "number":
            expected = ("", result.score, "number")
        elif name == "swag":
            expected = (result.text, log_odds(result.probability), "log-odds")
        else:
            continue
        assert (explanation.answer, explanation.measure) == (expected[0], expected[2])
        assert explanation.score == pytest.approx(expected[1], abs=1e-4), name


@pytest.mark.parametrize("name", ["sst", "pair"])
@pytest.mark.parametrize("baseline", ["mask", pytest.param("pad", marks=pytest.mark.slow)])
def test_gradients_equal_those_of_captum(models: dict[str, Predictor], name: str, baseline: Any) -> None:
    attributes = pytest.importorskip("captum.attr", reason="needs captum, of the extra dev")
    predictor, value = models[name], INPUTS[name]
    explanation = predictor.explain(value, baseline=baseline)
    saved = open_model(predictor.source)
    model = Classifier(saved.config, 3)
    model.load_state_dict(dict(saved.weights or {}))
    model.eval()
    item = predictor.pipeline.parse(value)
    row = predictor.pipeline.encode([item]).rows[0]
    batch = padded_batch([row], pad_id=saved.config.pad_id)
    label = SST.labels.index(explanation.answer)

    def score(ids: torch.Tensor) -> torch.Tensor:
        rows = TextBatch(ids, batch.segments.expand(len(ids), -1), batch.mask.expand(len(ids), -1))
        probabilities = model(rows).softmax(1)[:, label]
        return probabilities.log() - torch.log1p(-probabilities)

    tokenizer: Any = predictor.tokenizer
    ids = batch.ids.long()
    is_special = (ids == tokenizer.cls_id) | (ids == tokenizer.sep_id)
    others = torch.where(is_special, ids, tokenizer.mask_id if baseline == "mask" else tokenizer.pad_id)
    by_layer = attributes.LayerIntegratedGradients(score, model.encoder.embeddings.word)
    expected = by_layer.attribute(ids, others, n_steps=explanation.steps, method="gausslegendre").sum(-1)
    pieces = [piece.score for word in explanation.words for piece in word.pieces]
    np.testing.assert_allclose(pieces, expected[~is_special].detach(), atol=1e-5)


def test_occlusion_is_the_drop_without_the_pieces(models: dict[str, Predictor]) -> None:
    """Each piece is replaced by [MASK] in the ids, and each word with several pieces as a whole."""
    predictor, text = models["sst"], TEXTS[1]
    tokenizer: Any = predictor.tokenizer
    explanation = predictor.explain(text, method="occlusion")
    ids = tokenizer.ids([text])[0]
    label = SST.labels.index(explanation.answer)

    def score(masked: set[int]) -> float:
        row = predictor.pipeline.encode([(text,)]).rows[0]
        chosen = [tokenizer.mask_id if number in masked else id for number, id in enumerate(ids)]
        hidden = replace(row, ids=np.array([row.ids[0], *chosen, row.ids[-1]], dtype=np.int32))
        return log_odds(F.softmax(torch.from_numpy(predictor.pipeline.forward([hidden])[0]).double(), 0)[label].item())

    whole, number = score(set()), 0
    assert any(len(word.pieces) > 1 for word in explanation.words)
    for word in explanation.words:
        numbers = range(number, number + len(word.pieces))
        assert word.score == pytest.approx(whole - score(set(numbers)), abs=1e-4)
        for one, piece in zip(numbers, word.pieces, strict=True):
            assert (piece.piece, piece.score) == (
                tokenizer.pieces[ids[one]],
                pytest.approx(whole - score({one}), abs=1e-4),
            )
        number += len(word.pieces)


def keyword_model(folder: Path, tokenizer: Path) -> Predictor:
    """A model of a label that depends on one word, among other words in random order."""
    words, random = Tokenizer.load(tokenizer), np.random.default_rng(1)
    task = ClassificationTask(name="k", text=("text",), labels=("land", "water"))
    model = small_classifier(classifier_config(words.vocab_size, hidden=32), 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(50):
        targets = random.integers(0, 2, 16)
        texts = [keyword_text(("garden", "river")[target], random) for target in targets]
        rows = padded(encode(words, texts, max_length=32), range(16), pad_id=words.pad_id)
        loss = F.cross_entropy(model(rows), torch.from_numpy(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return load(save_classifier(folder, model, task, tokenizer, 32), precision="fp32")


def keyword_text(keyword: str, random: np.random.Generator) -> str:
    return " ".join(random.permutation([keyword, *random.choice(["the", "a", "quiet", "tower", "and"], 6)]))


def test_the_word_that_decides_is_on_top(tmp_path: Path, own_tokenizer: Path) -> None:
    predictor, random = keyword_model(tmp_path / "model", own_tokenizer), np.random.default_rng(2)
    for label, keyword in (("land", "garden"), ("water", "river")):
        for method in ("gradients", "occlusion"):
            explanation = predictor.explain(keyword_text(keyword, random), method=method)
            assert explanation.answer == label
            assert max(explanation.words, key=lambda word: word.score).text == keyword, method
        check_complete(predictor.explain(keyword_text(keyword, random)))


OTHERS = ("albert", "distilbert", "electra", "gpt2", "modernbert", "roberta", "two lstms")


@pytest.mark.parametrize("name", ["gpt", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_every_backbone(name: Any, tmp_path: Path, own_tokenizer: Path) -> None:
    """A pair is read in both orders by GPT-1; two LSTMs have two tables of words, and one reads from the end."""
    task = ClassificationTask(name="p", text=("a", "b"), labels=("no", "yes"), symmetric=True)
    size = Tokenizer.load(own_tokenizer).vocab_size

    def shape(system: Any) -> Any:
        return system_config(system, "2x64", size, max_positions=64)

    config: BackboneConfig = (
        PairConfig(left=shape("lstm-left"), right=shape("lstm-right")) if name == "two lstms" else shape(name)
    )
    model = Classifier(config, 2, both_orders=name == "gpt")
    init_weights(model, 0.15, torch.Generator().manual_seed(7))
    predictor = load(save_classifier(tmp_path, model, task, own_tokenizer, 40), precision="fp32")
    explanation = predictor.explain(INPUTS["pair"])
    assert (explanation.replaced, {word.input for word in explanation.words}) == ("mask", {0, 1})
    assert explanation.score == pytest.approx(log_odds(predictor(INPUTS["pair"]).probability), abs=1e-3)
    check_complete(explanation)
    check_complete(predictor.explain(INPUTS["pair"], baseline="zero"))


@pytest.mark.slow
def test_windows_share_their_words(tmp_path: Path, models: dict[str, Predictor], monkeypatch: Any) -> None:
    """The logits of all windows are averaged; where they do not fit into one batch, the numbers are the same."""
    saved = open_model(models["sst"].source)
    model = Classifier(saved.config, 3)
    model.load_state_dict(dict(saved.weights or {}))
    text = " ".join(LONG.split()[:20])

    def opened(long: str) -> Predictor:
        task = SST.model_copy(update={"long": long})
        return load(save_classifier(tmp_path / long, model, task, saved.tokenizer, 24), precision="fp32")

    by_long = {long: opened(long).explain(text) for long in ("windows", "truncate", "head-tail")}
    for explanation in by_long.values():
        check_complete(explanation)
    whole, begin, ends = ([word.text for word in each.words] for each in by_long.values())
    assert whole == text.split()
    assert begin == whole[: len(begin)]
    head = next(at for at, (kept, word) in enumerate(zip(ends, whole, strict=False)) if kept != word)
    tail = ends[head + 1 :]  # of the word at the cut only a part may be read
    assert 0 < head < head + len(tail) < len(whole) - 1
    assert whole[len(whole) - len(tail) :] == tail

    windows = opened("windows")
    together = [windows.explain(text, method="occlusion"), by_long["windows"]]
    monkeypatch.setattr(embedding_path, "GRADIENT_TOKENS", 50)
    monkeypatch.setattr(embedding_path, "ANSWERED_TOKENS", 50)
    apart = [windows.explain(text, method="occlusion"), windows.explain(text)]
    for one, other in zip(together, apart, strict=True):
        scores = [word.score for word in one.words]
        assert scores == pytest.approx([word.score for word in other.words], abs=1e-5)


def test_occlusion_computes_the_windows_of_a_word_alone(tmp_path: Path, models: dict[str, Predictor]) -> None:
    """A text of twice the length costs twice as many rows, not four times."""
    saved = open_model(models["sst"].source)
    task = SST.model_copy(update={"long": "windows"})
    folder = save_classifier(tmp_path / "windows", Classifier(saved.config, 3), task, saved.tokenizer, 24)
    predictor = load(folder, precision="fp32")
    exact: Any = predictor.pipeline_for("explain")._exact
    logits, computed = exact.logits, []

    def counted(rows: Any) -> Any:
        computed.append(len(rows))
        return logits(rows)

    exact.logits = counted
    explanation = predictor.explain(LONG, method="occlusion")
    num_rows = len(predictor.pipeline.encode([(LONG,)]).rows)
    num_pieces = sum(len(word.pieces) for word in explanation.words)
    num_long = sum(len(word.pieces) > 1 for word in explanation.words)
    assert num_rows > 5
    assert sum(computed) <= 3 * num_rows + 3 * (num_pieces + num_long)


def test_one_tag_is_explained_in_its_window(explained: dict[str, Predictor]) -> None:
    model, words = explained["tags"], TEXTS[3].split()
    entities = model(TEXTS[3]).entities
    default = model.explain(TEXTS[3])
    begin = entities[0].start
    assert begin > 0
    assert (default.start, default.end) == (begin, begin + len(TEXTS[3][begin:].split()[0]))
    without = model.explain("rain")
    assert (without.start, without.end) == (0, 4)
    assert model("rain").entities == ()
    for number, word in enumerate(words):
        explanation = model.explain(TEXTS[3], word=number)
        assert TEXTS[3][explanation.start : explanation.end] == word
        assert explanation.answer in TAGS.labels
        check_complete(explanation)
    far = model.explain(LONG, word=len(LONG.split()) - 1)
    assert far.words[-1].end == len(LONG) == far.end
    assert 0 < far.words[0].start < far.start
    assert model.explain("") is None
    assert model.explain(["", "rain"])[1].words[0].text == "rain"
    with pytest.raises(InputError, match="input 1: word 8: expected a number below 8"):
        model.explain([TEXTS[3] + " again", TEXTS[3]], word=8)


def test_a_span_is_explained_in_its_window(explained: dict[str, Predictor]) -> None:
    model = explained["squad"]
    answer, explanation = model(INPUTS["squad"]), model.explain(INPUTS["squad"])
    assert (explanation.answer, explanation.start, explanation.end) == (answer.text, answer.start, answer.end)
    read = [word for word in explanation.words if word.input == 1]
    assert read[0].start <= answer.start < answer.end <= read[-1].end
    assert read[-1].end - read[0].start < len(LONG)  # the passage has several windows
    pipeline = model.pipeline
    outputs = pipeline.forward(pipeline.encode([INPUTS["squad"]]).rows)
    sums = [values[0, :, None] + values[1, None, :] for values in outputs]
    assert min(abs(each - explanation.score).min() for each in sums) < 1e-4
    pipeline.threshold = -1e6
    try:
        none = model.explain(INPUTS["squad"])
    finally:
        pipeline.threshold = 1e6
    assert (none.answer, none.start) == ("", None)
    assert none.score == pytest.approx(min(values[:, 0].sum() for values in outputs), abs=1e-4)
    check_complete(none)


def test_empty_texts_have_no_words(explained: dict[str, Predictor]) -> None:
    for method in ("gradients", "occlusion"):
        empty = explained["sst"].explain(["", " \t"], method=method)
        assert [(each.words, each.difference) for each in empty] == [((), 0.0)] * 2
    one_side = explained["pair"].explain(("", "rain"))
    assert [(word.input, word.text) for word in one_side.words] == [(1, "rain")]
    with pytest.raises(InputError, match="the question is empty"):
        explained["squad"].explain((" ", "rain"))
    with pytest.raises(InputError, match="the passage is empty: it has no visible character"):
        explained["squad"].explain(("Where?", "\u200b"))


@pytest.mark.parametrize("name", ["bf16", pytest.param("int8", marks=needs_bytes)])
def test_the_explanation_is_computed_in_fp32(models: dict[str, Predictor], name: Any) -> None:
    exact = models["sst"].explain(TEXTS[3])
    other = load(models["sst"].source, precision=name).explain(TEXTS[3])
    assert other == exact


def test_wrong_options_and_models_are_refused(explained: dict[str, Predictor], tmp_path: Path) -> None:
    sst: Callable[..., Any] = explained["sst"].explain
    for options, message in (
        ({"method": "lime"}, "method 'lime': allowed are gradients, occlusion"),
        ({"baseline": "mean"}, "baseline 'mean': allowed are auto, mask, pad, zero"),
        ({"word": -1}, "word -1: expected the number of a word"),
        ({"word": True}, "word True: expected the number of a word"),
        ({"word": 0}, "word 0: expected a model of tags, got one for classification"),
    ):
        with pytest.raises(InputError, match=message):
            sst(TEXTS[0], **options)
    with pytest.raises(InputError, match="an explanation needs a model that was fine-tuned with its encoder, got one"):
        explained["lm"].explain(TEXTS[0])


def test_http(explained: dict[str, Predictor]) -> None:
    def asking(**fields: Any) -> tuple[Any, ...]:
        return ("POST", "/v1/predict", {"model": "sst", "inputs": TEXTS[:2], **fields})

    options = {"method": "occlusion", "baseline": "pad"}
    plain, default, chosen, tags, masked, bad, word = Requests(explained)(
        asking(),
        asking(explain=True),
        asking(explain=options),
        asking(model="tags", explain={"word": 1}, inputs=[TEXTS[3]]),
        asking(model="lm", explain=True),
        asking(explain={"method": "lime"}),
        asking(explain={"word": 1}),
    )
    assert plain.json()["explanations"] is None
    assert default.json()["results"] == plain.json()["results"]
    for response, value in ((default, {}), (chosen, options)):
        scores = [[word["score"] for word in each["words"]] for each in response.json()["explanations"]]
        expected = explained["sst"].explain(TEXTS[:2], **value)
        assert scores == [pytest.approx([word.score for word in each.words], abs=1e-5) for each in expected]
        assert [each["replaced"] for each in response.json()["explanations"]] == [each.replaced for each in expected]
    assert tags.json()["explanations"][0]["start"] == len("the ")
    assert [each.status_code for each in (masked, bad, word)] == [422] * 3
    assert "was not fine-tuned with its encoder" in masked.json()["error"]["message"]
    assert "word 1: expected a model of tags" in word.json()["error"]["message"]


@pytest.mark.parametrize("method", ["gradients", "occlusion"])
def test_a_service_gives_up_an_explanation_that_takes_too_long(explained: dict[str, Predictor], method: Any) -> None:
    pipeline = explained["sst"].pipeline_for("explain")
    with pytest.raises(
        InputError, match=r"input 0: the explanation takes more than 0 seconds here, for .* tokens; send"
    ):
        pipeline.forward(
            pipeline.encode([pipeline.parse(TEXTS[3])]).rows, settings=ExplainSettings(method, seconds=0.0)
        )
