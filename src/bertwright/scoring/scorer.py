"""sentences → log-probabilities of their pieces: masked LM with each piece masked in turn, or a language model.

The score of a sentence is the sum over its pieces. For a masked LM it is the pseudo-log-likelihood of Salazar et al.
2020 (arXiv 1910.14659), or its within-word left-to-right form of Kauf and Ivanova 2023 (arXiv 2305.10588), in which the
later pieces of the same word are masked too. [CLS] and [SEP] are not scored.

Sentences of one length are computed together, so that there is no padding. Only the predicted positions are projected
onto the vocabulary.

Shapes: S sentences of a length, T tokens, P pieces, N rows of a batch, Q predictions in a row, D hidden, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertwright.errors import InputError, shown
from bertwright.model.config import SingleBackboneConfig, attends_both_ways, predicts_ahead
from bertwright.model.encoder import SingleBackbone
from bertwright.model.folder import SavedModel, refuse_random
from bertwright.model.heads import MaskedLMHead, TiedOutput, for_loss
from bertwright.model.system import SPAN_SYSTEMS, system_of
from bertwright.objectives.language_model import open_language_model
from bertwright.objectives.masked_lm import has_masked_lm, open_pretrained
from bertwright.objectives.masked_next_token import as_language_model
from bertwright.scoring.settings import Direction, FirstToken, ScoreSettings
from bertwright.tables.bad_rows import BadRow, is_blank
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.inference import ANSWERED_TOKENS, open_answering, ready
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer
from bertwright.text.open_tokenizer import mask_tokenizer
from bertwright.text.wordpiece import Tokenizer
from bertwright.training.hardware import module_device
from bertwright.training.settings import Device

_LOGITS: Final = 1 << 20
"""Number of logits that are computed at a time; more do not fit into the cache of a core."""

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class ScoredRows:
    """Rows of one length, in which tokens are predicted.

    ids: what the model reads [N, T]. at: positions of the predicted tokens [N, Q]. labels: their ids [N, Q].
    """

    ids: Ids
    at: NDArray[np.int64]
    labels: Ids


class SentenceScorer(ABC):
    """A model that gives each piece of a sentence a log-probability, ready for inference.

    source: path of the model folder, for messages. max_length: largest number of tokens of a sentence, with [CLS] and
    [SEP].
    """

    tokenizer: BaseTokenizer
    encoder: SingleBackbone
    head: MaskedLMHead | TiedOutput
    has_frame: bool
    """True where a sentence stands between [CLS] and [SEP]."""
    shift: int
    """Number that is added to the position of a token for the position whose state predicts it."""

    def __init__(self, saved: SavedModel) -> None:
        self.source, self.max_length = saved.source, saved.config.max_positions

    @cached_property
    def _projection(self) -> tuple[Tensor, Tensor]:
        """Return the word embeddings [V, D] and the bias [V] of the logits, in fp32, of the pieces of the vocabulary.

        Rows of the table beyond the vocabulary are no candidates.
        """
        pieces = self.tokenizer.vocab_size
        return for_loss(self.encoder.word_embeddings()[0].weight)[:pieces], for_loss(self.head.bias)[:pieces]

    @abstractmethod
    def resolve(self, settings: ScoreSettings) -> ScoreSettings:
        """Return the settings with the defaults of this model. Raises InputError for a setting of the other kind."""

    def _refuse_direction(self, settings: ScoreSettings, opened: Direction) -> None:
        """Raise InputError where the settings name another direction than that in which the model was opened."""
        if settings.direction not in (None, opened):
            raise InputError(
                f"direction {settings.direction}: this model was opened with the direction {opened}; open it with "
                "the other one"
            )

    @abstractmethod
    def rows(self, sentences: Ids, settings: ScoreSettings) -> Iterator[ScoredRows]:
        """Yield the rows of framed sentences [S, T] in batches; their predictions are the scored pieces in order."""

    @abstractmethod
    def scored_pieces(self, num_pieces: int, settings: ScoreSettings) -> slice:
        """Return the part of a sentence's pieces that is scored; `settings` are resolved."""

    @abstractmethod
    def num_rows(self, num_pieces: int) -> int:
        """Return the number of rows that are computed for a sentence."""

    def frame(self, ids: Sequence[int]) -> Ids:
        """Return the pieces of a sentence as in training: between [CLS] and [SEP], or alone [T]."""
        framed = [self.tokenizer.begin_id, *ids, self.tokenizer.end_id] if self.has_frame else ids
        return np.array(framed, dtype=np.int32)

    def encode(
        self, texts: Sequence[str], settings: ScoreSettings, location: Callable[[int], str] = "sentence {}".format
    ) -> list[list[int]]:
        """Return the ids of the pieces of each sentence, without special tokens.

        settings: resolved ones. location: function from the number of a sentence, from 0 on, to its description in
        messages, or to "". Raises InputError for an empty sentence, for one with more tokens than the model reads, and
        for one of which no piece is scored.
        """

        def begin(index: int) -> str:
            return f"{location(index)}: " if location(index) else ""

        for index, text in enumerate(texts):
            refuse_halves([text], begin(index))
            if is_blank(text):
                raise BadRow("without a text", f"{begin(index)}expected a sentence, got an empty one")
        all_ids = self.tokenizer.ids(texts)
        for index, ids in enumerate(all_ids):
            num_tokens = len(self.frame(ids))
            if num_tokens > self.max_length:
                raise InputError(
                    f"{begin(index)}the sentence has {num_tokens:,} tokens; expected at most {self.max_length}, "
                    f"the positions of this model; shorten or divide it"
                )
            if not ids[self.scored_pieces(len(ids), settings)]:
                why = "the first piece is left out" if ids else "the tokenizer keeps none of its characters"
                raise InputError(
                    f"{begin(index)}expected a sentence with pieces to score, got '{shown(texts[index])}': {why}"
                )
        return all_ids

    def log_probabilities(
        self,
        all_ids: Sequence[Sequence[int]],
        settings: ScoreSettings,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> list[NDArray[np.float32]]:
        """Return the log-probability (natural logarithm) of each scored piece of each sentence.

        settings: resolved ones. progress: is called with the number of tokens after each block of sentences.
        """
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for index, ids in enumerate(all_ids):
            by_length[len(ids)].append(index)
        outputs: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(all_ids)
        for num_pieces in sorted(by_length, reverse=True):
            tokens = num_pieces * self.num_rows(num_pieces)
            for block in blocks_of(by_length[num_pieces], max(1, 8 * ANSWERED_TOKENS // tokens)):
                sentences = np.stack([self.frame(all_ids[index]) for index in block])
                logarithms = np.concatenate([self.of_rows(rows).ravel() for rows in self.rows(sentences, settings)])
                for index, values in zip(block, logarithms.reshape(len(block), -1), strict=True):
                    outputs[index] = values
                progress(tokens * len(block))
        return outputs

    def of_rows(self, rows: ScoredRows) -> NDArray[np.float32]:
        """Return the log-probabilities [N, Q] of the predicted tokens of rows of one length."""
        device = module_device(self.encoder)
        ids, at, labels = (torch.from_numpy(array).to(device) for array in (rows.ids, rows.at, rows.labels))
        with torch.inference_mode():
            mask = torch.ones_like(ids, dtype=torch.bool)
            states = self.encoder(ids, torch.zeros_like(ids), mask, at=at + self.shift).last  # [N, Q, D]
            vectors = self.head.states(states.flatten(0, 1))
            logarithms = label_logarithms(vectors, *self._projection, labels.flatten().long())
        return np.asarray(logarithms.cpu().numpy().reshape(rows.at.shape))


class MaskedScorer(SentenceScorer):
    """A masked LM: a row for each piece, with that piece masked."""

    has_frame = True

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        super().__init__(saved)
        self.pieces: MaskTokenizer = mask_tokenizer(tokenizer, place=saved.source, advice="a masked LM needs [MASK]")
        self.tokenizer, model = tokenizer, ready(open_pretrained(saved), saved)
        self.encoder, self.head = model.encoder, model.masked_lm
        self.shift = -1 if model.encoder.config.predicts_ahead else 0

    def resolve(self, settings: ScoreSettings) -> ScoreSettings:
        """Return the settings, within-word masking being the default. Raises InputError for `first_token`."""
        if settings.first_token is not None:
            raise InputError(
                f"first_token {settings.first_token}: is for a language model, and this is a masked LM; leave it out"
            )
        self._refuse_direction(settings, "both")
        direction: Direction | None = "both" if self.shift else None
        return replace(settings, masking=settings.masking or "within-word", direction=direction)

    def scored_pieces(self, num_pieces: int, settings: ScoreSettings) -> slice:
        """Return all pieces."""
        return slice(0, num_pieces)

    def num_rows(self, num_pieces: int) -> int:
        """Return the number of pieces."""
        return num_pieces

    def rows(self, sentences: Ids, settings: ScoreSettings) -> Iterator[ScoredRows]:
        """Yield a row for each piece of each sentence [S, T], sentence after sentence."""
        length = sentences.shape[1]
        words = np.cumsum(~self.pieces.continuation[sentences], axis=1)  # number of the word of each token [S, T]
        columns = np.arange(length)
        for copies in blocks_of(range(len(sentences) * (length - 2)), max(1, ANSWERED_TOKENS // length)):
            numbers, at = np.divmod(np.array(copies, dtype=np.int64), length - 2)
            at = at + 1  # after [CLS]
            is_masked = columns == at[:, None]
            if settings.masking == "within-word":
                is_masked = (words[numbers] == words[numbers, at][:, None]) & (columns >= at[:, None])
            ids = np.where(is_masked, np.int32(self.pieces.mask_id), sentences[numbers])
            yield ScoredRows(ids, at[:, None], sentences[numbers, at][:, None])


class LanguageScorer(SentenceScorer):
    """A language model: one row, whose pieces are predicted from those before them (or after them)."""

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        super().__init__(saved)
        self.tokenizer, model = tokenizer, ready(open_language_model(saved), saved)
        self.encoder, self.head = model.encoder, model.output
        self.is_left = model.config.attends == "left"
        self.shift = -1 if self.is_left else 1
        is_span_model = system_of(model.config) in SPAN_SYSTEMS and not isinstance(tokenizer, Tokenizer)
        self.has_frame = isinstance(tokenizer, MaskTokenizer) and not is_span_model

    def resolve(self, settings: ScoreSettings) -> ScoreSettings:
        """Return the settings with the default of this model. Raises InputError for `masking`."""
        if settings.masking is not None:
            raise InputError(
                f"masking {settings.masking}: is for a masked LM, and this is a language model; leave it out"
            )
        if settings.first_token == "count" and not self.has_frame:
            raise InputError(
                "first_token count: this model reads sentences without a token before them, so that the first "
                "piece has no probability; leave it out"
            )
        self._refuse_direction(settings, "left")
        default: FirstToken = "count" if self.has_frame else "leave-out"
        return replace(settings, first_token=settings.first_token or default)

    def scored_pieces(self, num_pieces: int, settings: ScoreSettings) -> slice:
        """Return all pieces, or all but the one that is predicted first."""
        if settings.first_token == "count":
            return slice(0, num_pieces)
        return slice(1, num_pieces) if self.is_left else slice(0, max(0, num_pieces - 1))

    def num_rows(self, num_pieces: int) -> int:
        """Return 1."""
        return 1

    def rows(self, sentences: Ids, settings: ScoreSettings) -> Iterator[ScoredRows]:
        """Yield the sentences [S, T] themselves."""
        length = sentences.shape[1]
        pieces = np.arange(length)[1:-1] if self.has_frame else np.arange(length)
        at = pieces[self.scored_pieces(len(pieces), settings)]
        for block in blocks_of(range(len(sentences)), max(1, ANSWERED_TOKENS // length)):
            ids = sentences[block[0] : block[-1] + 1]
            yield ScoredRows(ids, np.tile(at, (len(ids), 1)), ids[:, at])


def blocks_of(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield parts of at most `size` values."""
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]


def label_logarithms(vectors: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each label [N], for vectors [N, D], word embeddings [V, D] and bias [V].

    The logits are computed in the precision of the embeddings: fp32, also for a model in bf16, since logits in bf16
    would have three digits, and the order of two sentences hangs on them.
    """
    logarithms, size = [], max(1, _LOGITS // len(embeddings))
    for rows, chosen in zip(vectors.split(size), labels.split(size), strict=True):
        logits = F.linear(rows.to(embeddings.dtype), embeddings, bias)
        logarithms.append(logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(1))
    return torch.cat(logarithms)


def has_scores(saved: SavedModel) -> bool:
    """Return True where a model folder has the head of a masked LM, or is a language model."""
    if attends_both_ways(saved.config):
        return has_masked_lm(saved)
    if not isinstance(saved.config, SingleBackboneConfig):
        return False
    return "task" not in saved.extra or any(name.startswith(("masked_lm.", "lm.")) for name in saved.weights or {})


def scorer_of(saved: SavedModel, tokenizer: BaseTokenizer, direction: Direction | None = None) -> SentenceScorer:
    """Return the scorer of a model folder; `direction` as in ScoreSettings.

    Raises InputError for a model without a head over the vocabulary, and for a direction where it is no GPT-BERT.
    """
    refuse_random(saved)
    if not has_scores(saved):
        what = f"a model for {saved.extra['task']['name']}" if "task" in saved.extra else f"a {saved.architecture}"
        raise InputError(
            f"{saved.source}: expected a model with the head of masked LM, or a language model, got {what} without "
            "such a head; name the pre-trained model that it was made from"
        )
    if direction is not None and not predicts_ahead(saved.config):
        raise InputError(
            f"direction {direction}: is for a GPT-BERT, which predicts pieces from both sides and from the left; leave "
            f"it out for {saved.source}"
        )
    if direction == "left":
        saved = as_language_model(saved)
    return (MaskedScorer if attends_both_ways(saved.config) else LanguageScorer)(saved, tokenizer)


def open_scorer(
    model: str, precision: str | None = None, device: Device = "cpu", direction: Direction | None = None
) -> SentenceScorer:
    """Open a model for scores; precision None computes as in training. Raises InputError as `scorer_of`."""
    saved = open_answering(model, precision, device)
    return scorer_of(saved, open_tokenizer(saved), direction)
