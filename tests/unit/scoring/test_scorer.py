"""Log-probabilities of pieces: a plain loop over the models of transformers, or over our own modules, row by row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bertwright.errors import InputError, RunFailed
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.language_model import open_language_model
from bertwright.scoring.scorer import SentenceScorer, label_logarithms, open_scorer
from bertwright.scoring.settings import ScoreSettings
from bertwright.tasks.classification.spec import SST2
from bertwright.text.wordpiece import Tokenizer
from tests.support.blimp import log_likelihoods
from tests.support.encoders import classifier_config, save_classifier, small_classifier, write_encoder
from tests.support.language_models import write_language_model
from tests.support.published_families import FAMILIES, Published, publish
from tests.support.served import overflowing

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

TEXTS = (
    "The harbour was quiet.",
    "Unquietly, gardens remembered the harbourmasters of yesterday!",
    "Rain",
    "The quiet harbour.",
    "the bridge over the river, and the garden behind the library",
)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("scores") / "masked", own_tokenizer, initializer_range=0.3)


def by_loop(folder: str, text: str, *, within_word: bool) -> list[float]:
    """The log-probability of each piece by transformers' model and tokenizer, one masked row at a time."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(text, return_tensors="pt")
    words, ids = encoded.word_ids(), encoded["input_ids"][0]
    logarithms = []
    for at in range(1, len(ids) - 1):
        row = ids.clone()
        for other in range(at, len(ids) - 1):
            if other == at or (within_word and words[other] == words[at]):
                row[other] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=row[None]).logits[0, at]
        logarithms.append(float(logits.log_softmax(-1)[ids[at]]))
    return logarithms


@pytest.mark.parametrize("masking", ["within-word", "piece"])
@pytest.mark.parametrize("precision", [None, "fp32"])
def test_a_masked_lm_gives_the_numbers_of_a_plain_loop(masked: str, masking: Any, precision: str | None) -> None:
    scorer = open_scorer(masked, precision)
    settings = scorer.resolve(ScoreSettings(masking=masking))
    computed = scorer.log_probabilities(scorer.encode(TEXTS, settings), settings)
    for text, values in zip(TEXTS, computed, strict=True):
        wanted = by_loop(masked, text, within_word=masking == "within-word")
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("published", FAMILIES, ids=lambda published: published.family)
@pytest.mark.parametrize("masking", ["within-word", "piece"])
def test_berts_successors_give_the_numbers_of_a_plain_loop(
    published: Published, masking: Any, tmp_path: Path, own_tokenizer: Path
) -> None:
    publish(tmp_path / "m", published, "BertForMaskedLM", own_tokenizer)
    scorer = open_scorer(str(tmp_path / "m"), "fp32")
    settings = scorer.resolve(ScoreSettings(masking=masking))
    computed = scorer.log_probabilities(scorer.encode(TEXTS[:2], settings), settings)
    for text, values in zip(TEXTS[:2], computed, strict=True):
        wanted = by_loop(str(tmp_path / "m"), text, within_word=masking == "within-word")
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-5)


def test_rows_without_a_piece_are_no_candidates(masked: str, own_tokenizer: Path, tmp_path: Path) -> None:
    """A padded table gives the scores of the table without its padding, whatever the bias there."""
    saved = open_model(masked)
    assert saved.weights
    more = {"encoder.embeddings.word.weight": torch.zeros(8, saved.config.hidden)}
    more["masked_lm.bias"] = torch.full((8,), 50.0)
    padded = {name: torch.cat([saved.weights[name], rows]) for name, rows in more.items()}
    config = saved.config.model_copy(update={"vocab_size": saved.config.vocab_size + 8})
    parts = {"tokenizer": own_tokenizer, "architecture": saved.architecture}
    save_model(tmp_path / "padded", {**saved.weights, **padded}, config=config, **parts)
    scorers = [open_scorer(folder, "fp32") for folder in (masked, str(tmp_path / "padded"))]
    settings = scorers[0].resolve(ScoreSettings())
    plain, of_padded = (each.log_probabilities(each.encode(TEXTS, settings), settings) for each in scorers)
    for values, wanted in zip(of_padded, plain, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-5)


def test_the_two_ways_of_masking_differ_in_words_of_several_pieces_alone(masked: str) -> None:
    scorer = open_scorer(masked)
    assert isinstance(scorer.tokenizer, Tokenizer)
    ways = [scorer.resolve(ScoreSettings(masking=masking)) for masking in ("within-word", "piece")]
    assert scorer.resolve(ScoreSettings()) == ways[0]
    ids = scorer.encode(TEXTS, ways[0])
    continued = 0
    for pieces, within, alone in zip(ids, *(scorer.log_probabilities(ids, way) for way in ways), strict=True):
        goes_on = np.append(scorer.tokenizer.continuation[pieces][1:], False)  # the word goes on after this piece
        np.testing.assert_allclose(within[~goes_on], alone[~goes_on], rtol=1e-6, atol=1e-5)
        assert np.all(np.abs(within[goes_on] - alone[goes_on]) > 1e-5)
        continued += int(goes_on.sum())
    assert continued > 10


def test_scores_do_not_depend_on_the_batches(masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = open_scorer(masked)
    settings = scorer.resolve(ScoreSettings())
    ids = scorer.encode(TEXTS * 3, settings)
    together = scorer.log_probabilities(ids, settings)
    monkeypatch.setattr("bertwright.scoring.scorer.ANSWERED_TOKENS", 40)
    monkeypatch.setattr("bertwright.scoring.scorer._LOGITS", 1000)
    for apart, values in zip(scorer.log_probabilities(ids, settings), together, strict=True):
        np.testing.assert_allclose(apart, values, rtol=1e-6, atol=1e-5)


def causal_by_transformers(folder: str, kind: str, ids: list[int], first: int, last: int) -> list[float]:
    """The log-probabilities of the tokens from `first` to before `last`, each from a row that ends before it."""
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    logarithms = []
    for at in range(first, last):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[:at]])).logits[0, -1]
        logarithms.append(float(logits.log_softmax(-1)[ids[at]]))
    return logarithms


def scores_of(scorer: SentenceScorer, settings: ScoreSettings) -> list[NDArray[np.float32]]:
    resolved = scorer.resolve(settings)
    return scorer.log_probabilities(scorer.encode(TEXTS[:2], resolved), resolved)


def test_a_left_to_right_bert_gives_the_numbers_of_a_plain_loop(tmp_path: Path, own_tokenizer: Path) -> None:
    folder = write_language_model(tmp_path / "left", "bert-left", own_tokenizer, "")
    scorer = open_scorer(folder)
    framed = [scorer.frame(ids).tolist() for ids in scorer.tokenizer.ids(TEXTS[:2])]
    every = [causal_by_transformers(folder, "BertLMHeadModel", ids, 1, len(ids) - 1) for ids in framed]
    for values, expected in zip(scores_of(scorer, ScoreSettings()), every, strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-5)
    for values, expected in zip(scores_of(scorer, ScoreSettings(first_token="leave-out")), every, strict=True):
        np.testing.assert_allclose(values, expected[1:], rtol=1e-6, atol=1e-5)


def test_gpt_gives_the_numbers_of_a_plain_loop_without_the_first_token(
    tmp_path: Path, own_tokenizer: Path, own_text: Path
) -> None:
    folder = write_language_model(tmp_path / "gpt", "gpt", own_tokenizer, own_text.read_text("utf-8"))
    scorer = open_scorer(folder)
    all_ids = scorer.tokenizer.ids(TEXTS[:2])
    for ids, values in zip(all_ids, scores_of(scorer, ScoreSettings()), strict=True):
        expected = causal_by_transformers(folder, "OpenAIGPTLMHeadModel", ids, 1, len(ids))
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-5)
    with pytest.raises(InputError, match=r"first_token count: this model reads sentences without a token before them"):
        scorer.resolve(ScoreSettings(first_token="count"))


@pytest.mark.parametrize("system", ["bert-right", "lstm-right", "lstm-left"])
@pytest.mark.parametrize("first_token", ["count", "leave-out"])
def test_other_systems_give_the_numbers_of_a_loop_over_their_modules(
    tmp_path: Path, own_tokenizer: Path, system: str, first_token: Any
) -> None:
    """In the row of each prediction, another piece stands at all tokens that it must not depend on."""
    folder = write_language_model(tmp_path / system, system, own_tokenizer, "")
    scorer, model = open_scorer(folder), open_language_model(open_model(folder))
    is_left = system == "lstm-left"
    for ids, values in zip(
        scorer.tokenizer.ids(TEXTS[:2]), scores_of(scorer, ScoreSettings(first_token=first_token)), strict=True
    ):
        framed, expected = scorer.frame(ids), []
        for at in range(1, len(framed) - 1):
            row = torch.from_numpy(framed.copy())[None]
            hidden = slice(at, None) if is_left else slice(0, at + 1)
            row[:, hidden] = 7
            with torch.no_grad():
                states = model.encoder(row, torch.zeros_like(row), torch.ones_like(row, dtype=torch.bool)).last
                predicting = states[0, at - 1 if is_left else at + 1]
                logits = torch.nn.functional.linear(model.output.states(predicting), *model.projection)
            expected.append(float(logits.log_softmax(-1)[framed[at]]))
        if first_token == "leave-out":
            expected = expected[1:] if is_left else expected[:-1]
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-5)


def test_logits_are_fp32_in_a_model_of_bf16() -> None:
    """Logits that are rounded to bf16 have errors of 0.01 and more."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(40, 64, generator=generator).bfloat16()
    embeddings, bias = torch.randn(900, 64, generator=generator), torch.randn(900, generator=generator)
    labels = torch.arange(40) * 20
    exact = torch.nn.functional.linear(vectors.double(), embeddings.double(), bias.double()).log_softmax(1)
    torch.testing.assert_close(
        label_logarithms(vectors, embeddings, bias, labels).double(), exact[torch.arange(40), labels], atol=1e-4, rtol=0
    )


def test_bf16_is_near_fp32(masked: str) -> None:
    exact, narrow = open_scorer(masked), open_scorer(masked, "bf16")
    settings = exact.resolve(ScoreSettings())
    scores = [log_likelihoods(scorer, TEXTS, settings) for scorer in (exact, narrow)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=0.02)
    assert narrow._projection[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"line 7: expected a sentence, got an empty one"),
        (" \u200b\n", r"line 7: expected a sentence, got an empty one"),
        (". " * 63, r"line 7: the sentence has 65 tokens; expected at most 64, the positions of this model; shorten"),
    ],
)
def test_a_sentence_that_cannot_be_scored_is_refused(masked: str, text: str, words: str) -> None:
    scorer = open_scorer(masked)
    with pytest.raises(InputError, match=words):
        scorer.encode(["the", text], scorer.resolve(ScoreSettings()), lambda index: f"line {6 + index}")
    assert len(scorer.encode([". " * 62], scorer.resolve(ScoreSettings()))[0]) == 62


def test_a_single_piece_without_the_first_token_is_refused(tmp_path: Path, own_tokenizer: Path, own_text: Path) -> None:
    scorer = open_scorer(write_language_model(tmp_path / "gpt", "gpt", own_tokenizer, own_text.read_text("utf-8")))
    with pytest.raises(InputError, match="sentence 0: expected a sentence with pieces to score, got 'a': the first"):
        scorer.encode(["a"], scorer.resolve(ScoreSettings()))


def test_settings_of_the_other_kind_of_model_are_refused(masked: str, tmp_path: Path, own_tokenizer: Path) -> None:
    with pytest.raises(InputError, match=r"first_token count: is for a language model, and this is a masked LM"):
        open_scorer(masked).resolve(ScoreSettings(first_token="count"))
    left = write_language_model(tmp_path / "left", "bert-left", own_tokenizer, "")
    with pytest.raises(InputError, match=r"masking piece: is for a masked LM, and this is a language model"):
        open_scorer(left).resolve(ScoreSettings(masking="piece"))
    unknown: Any = "word"
    with pytest.raises(InputError, match="masking 'word': allowed are within-word, piece"):
        ScoreSettings(masking=unknown)


def test_a_model_without_a_head_is_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    model = small_classifier(classifier_config(Tokenizer.load(own_tokenizer).vocab_size), 2)
    folder = save_classifier(tmp_path / "sst2", model, SST2, own_tokenizer, 64)
    with pytest.raises(
        InputError, match=r"sst2: expected a model with the head of masked LM, .*got a model for sst2 with"
    ):
        open_scorer(folder)


def test_a_score_that_is_not_finite_names_its_sentence(masked: str, tmp_path: Path) -> None:
    scorer = open_scorer(overflowing(masked, tmp_path / "m", "the"))
    settings = scorer.resolve(ScoreSettings())
    with pytest.raises(RunFailed, match="line 1: expected finite numbers from the model"):
        log_likelihoods(scorer, ["a river", "the river"], settings, location=lambda index: f"line {index + 1}")


def test_equal_sentences_are_computed_once(masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = open_scorer(masked)
    settings, computed = scorer.resolve(ScoreSettings()), []
    plain = scorer.log_probabilities

    def counting(ids: Any, *rest: Any) -> Any:
        computed.append(len(ids))
        return plain(ids, *rest)

    monkeypatch.setattr(scorer, "log_probabilities", counting)
    scores = log_likelihoods(scorer, ["rain", "the harbour", "rain"], settings)
    assert computed == [2]
    assert scores[0] == scores[2] != scores[1]
