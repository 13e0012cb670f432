"""pre-trained models → pipelines: candidates for [MASK], next sentences, vectors, attention (paper §3.1)."""

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bertwright.errors import InputError, shown
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import TransformerBackbone
from bertwright.model.folder import SavedModel
from bertwright.objectives.masked_lm import open_pretrained
from bertwright.serving.embeddings import Pool, check_pool, pooled, token_states
from bertwright.serving.pipeline import (
    WHOLE_ROW,
    EncodedInputs,
    ModelRow,
    Pipeline,
    TextPipeline,
    padded_batch,
    parse_pair,
    rows_of_encoded,
)
from bertwright.serving.results import AttentionView, FilledText, Follows, Piece, Vector
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.fill_mask import Filled, candidates, finite_softmax, open_next_sentence
from bertwright.tasks.inference import ready
from bertwright.tasks.sentence_vectors import SentenceEncoder, TextRole, num_prompt_tokens, prompt_of
from bertwright.tasks.static_vectors import LONG, StaticVectors, TextVectors
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer
from bertwright.text.open_tokenizer import mask_tokenizer

MOST_TOKENS: Final = 96
"""Largest number of tokens of an input whose attention is shown: the answer grows with their square."""


@dataclass(frozen=True)
class TruncatedInputs(EncodedInputs):
    """A row for each input; `truncated` is True for each input that was cut."""

    truncated: Sequence[bool]


class VectorPipeline(TextPipeline[TruncatedInputs]):
    """The vector of a text. It needs no head, so every model has this pipeline."""

    kind = "vectors"

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.sentences, self.tokenizer = SentenceEncoder(saved, tokenizer), tokenizer
        self.vector_source: TextVectors = self.sentences
        self.encoder, self.max_length = self.sentences.encoder, self.sentences.max_length
        self.prompt: str | None = None  # None: the default prompt of the folder
        self.role: TextRole = "text"

    def with_prompt(self, name: str | None, text: str | None, source: str) -> "VectorPipeline":
        """Return the pipeline with another prompt before each text: that of a name in the folder, or a text.

        Raises InputError for an unknown name, with `source`, and for a prompt that leaves no room for a text.
        """
        if name is not None and text is not None:
            raise InputError(f"prompt_name {name!r} and prompt {shown(text)!r}: expected one of them, got both")
        if name is None and text is None:
            return self
        prompts = self.sentences.settings.prompts
        if name is not None and name not in prompts:
            known = f"expected one of {', '.join(prompts)}" if prompts else "it has none; give the text as prompt"
            raise InputError(f"prompt_name {shown(name)!r}: {source} has no prompt of this name; {known}")
        prompt: Any = text if name is None else prompts[name]
        if not isinstance(prompt, str):
            raise InputError(f"prompt {shown(prompt)}: expected a text")
        refuse_halves([prompt], "prompt ")
        num_prompt_tokens(self.tokenizer, prompt, max_length=self.max_length)
        pipeline = copy.copy(self)
        pipeline.prompt, pipeline.role = prompt, "query" if name == "query" else "text"
        pipeline.max_length = self.sentences.limit(pipeline.role)
        return pipeline

    def for_queries(self, source: str) -> "VectorPipeline":
        """Return the pipeline for queries of a search, with their prompt and their maximum number of tokens."""
        pipeline = self.with_prompt(None, prompt_of(self.sentences.settings, "query"), source)
        pipeline.role, pipeline.max_length = "query", self.sentences.limit("query")
        return pipeline

    @property
    def batch_key(self) -> Hashable:
        """Key of the computation: rows with different prompts may be pooled in different ways."""
        return self.kind, self.prompt

    @property
    def widths(self) -> tuple[int, ...]:
        """Matryoshka widths of the folder."""
        return self.sentences.settings.widths

    @property
    def pooling(self) -> tuple[str, ...]:
        """Pooling modes of the folder's vectors, which are concatenated."""
        return self.sentences.settings.pooling

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts of the folder by name."""
        return self.sentences.settings.prompts

    def size(self, pool: Pool | None, layer: int = -1) -> int:
        """Return the number of components of a vector with this pooling of this layer."""
        return self.sentences.size if self._as_described(pool, layer) else self.encoder.config.hidden

    def encode(self, items: Sequence[str]) -> TruncatedInputs:
        """Return one row for each text, with its prompt, cut at its end where it is too long."""
        ids, cut = self.sentences.rows(items, self.role, prompt=self.prompt)
        return TruncatedInputs([ModelRow(row, len(row), WHOLE_ROW) for row in ids], cut)

    def forward(
        self, rows: Sequence[ModelRow], *, pool: Pool | None = None, layer: int = -1, width: int | None = None
    ) -> list[NDArray[np.float32]]:
        """Return one vector [D] for each row; layer 0 is the embeddings, -1 the last layer.

        pool None is what the folder describes: its pooling, dense layers and normalisation; the mean where it describes
        nothing, and for another layer than the last. width: number of components of what the folder describes. Raises
        InputError for pool cls where the first token attends to itself alone.
        """
        if pool is None and layer in (-1, self.encoder.config.layers):
            return list(self.sentences.of_rows([row.ids for row in rows], width=width, prompt=self.prompt))
        chosen = pool or "mean"
        check_pool(self.encoder.config, chosen)
        layers = [layer % (self.encoder.config.layers + 1)]
        states = token_states(self.encoder, [row.ids for row in rows], layers)
        return [pooled(of_text, chosen)[0] for of_text in states]

    def _as_described(self, pool: Pool | None, layer: int) -> bool:
        return pool is None and self.sentences.is_described and layer in (-1, self.encoder.config.layers)

    def decode(self, inputs: TruncatedInputs, outputs: Sequence[NDArray[np.float32]]) -> list[Vector]:
        """Return one vector for each text."""
        return [Vector(vector, cut) for vector, cut in zip(outputs, inputs.truncated, strict=True)]


class StaticPipeline(VectorPipeline):
    """The vector of a text from a static table, which has no layers, prompts or maximum number of tokens."""

    widths = ()
    pooling = ("mean",)
    prompts: Mapping[str, str] = {}

    def __init__(self, static: StaticVectors) -> None:
        self.vector_source = self.static = static
        self.tokenizer, self.max_length = static.tokenizer, LONG
        self.prompt, self.role = None, "text"

    def with_prompt(self, name: str | None, text: str | None, source: str) -> "StaticPipeline":
        """Return the pipeline. Raises InputError, with `source`, for a prompt."""
        if name is not None or text:
            raise InputError(f"prompt {shown(name or str(text))!r}: {source} is a static table, which has no prompts")
        return self

    def for_queries(self, source: str) -> "StaticPipeline":
        """Return the pipeline: queries are texts like all others."""
        return self

    def size(self, pool: Pool | None, layer: int = -1) -> int:
        """Return the number of components of a vector. Raises InputError for a pool."""
        _refuse_pool(pool)
        return self.static.size

    def encode(self, items: Sequence[str]) -> TruncatedInputs:
        """Return one row for each text; that of a text without pieces has the unknown one, which counts for nothing."""
        ids, cut = self.static.rows(items)
        unknown = np.array([self.tokenizer.unk_id], dtype=np.int32)
        rows = [row if len(row) else unknown for row in ids]
        return TruncatedInputs([ModelRow(row, len(row), WHOLE_ROW) for row in rows], cut)

    def forward(
        self, rows: Sequence[ModelRow], *, pool: Pool | None = None, layer: int = -1, width: int | None = None
    ) -> list[NDArray[np.float32]]:
        """Return one vector [D] for each row. Raises InputError for a pool."""
        _refuse_pool(pool)
        return list(self.static.of_rows([row.ids for row in rows], width=width))


def _refuse_pool(pool: Pool | None) -> None:
    if pool is not None:
        raise InputError(f"pool {pool}: expected none, since a static table has no states of tokens")


class NextSentencePipeline(Pipeline[tuple[str, str], TruncatedInputs]):
    """The probability that the second text of a pair follows the first (paper §3.1, task 2)."""

    kind, form = "next sentence", "a tuple of two texts"
    example = (TextPipeline.example, TextPipeline.example)

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.model, self.tokenizer = ready(open_next_sentence(saved), saved), tokenizer
        self.max_length = saved.config.max_positions

    def parse(self, value: Any) -> tuple[str, str] | None:
        """Return a tuple of two texts."""
        return parse_pair(value)

    def encode(self, items: Sequence[tuple[str, str]]) -> TruncatedInputs:
        """Return one row for each pair."""
        first, second = zip(*items, strict=True)
        encoded = encode(self.tokenizer, first, second, max_length=self.max_length)
        return TruncatedInputs(rows_of_encoded(encoded), encoded.cut.tolist())

    def forward(self, rows: Sequence[ModelRow]) -> list[float]:
        """Return the probability of IsNext of each row."""
        batch = padded_batch(rows, pad_id=self.tokenizer.pad_id)
        with torch.inference_mode():
            state = self.model.encoder.summary(batch.ids, batch.segments, batch.mask)
            probabilities: list[float] = finite_softmax(self.model.pair_logits(state))[:, 0].tolist()
        return probabilities

    def decode(self, inputs: TruncatedInputs, outputs: Sequence[float]) -> list[Follows]:
        """Return one probability for each pair."""
        return [Follows(value, cut) for value, cut in zip(outputs, inputs.truncated, strict=True)]


@dataclass(frozen=True)
class MaskedText:
    """A text with [MASK] and its token ids, without [CLS] and [SEP]."""

    text: str
    ids: tuple[int, ...]


class FillPipeline(Pipeline[MaskedText, EncodedInputs]):
    """Candidates for each [MASK] (paper §3.1, task 1)."""

    kind, form = "fill", "a text with [MASK] in it"

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        self.tokenizer: MaskTokenizer = mask_tokenizer(tokenizer, place=saved.source, advice="only a BERT fills gaps")
        self.model = ready(open_pretrained(saved), saved)
        self.max_length = saved.config.max_positions
        self.example = MaskedText("[MASK]", (self.tokenizer.mask_id,))

    def parse(self, value: Any) -> MaskedText | None:
        """Return the tokenised text. Raises InputError without [MASK], and for a text that is too long."""
        if not isinstance(value, str):
            return None
        refuse_halves([value])
        ids = tuple(self.tokenizer.ids([value], special=True)[0])
        if self.tokenizer.mask_id not in ids:
            raise InputError(
                f"{shown(value)!r} holds no [MASK]; write [MASK] in place of a word, in capitals. This model was "
                "pre-trained and fills masks; for labels, load a fine-tuned model"
            )
        if len(ids) + 2 > self.max_length:
            raise InputError(f"the text has {len(ids) + 2} tokens; this model takes at most {self.max_length}")
        return MaskedText(value, ids)

    def texts(self, item: MaskedText) -> tuple[str, ...]:
        """Return the text."""
        return (item.text,)

    def encode(self, items: Sequence[MaskedText]) -> EncodedInputs:
        """Return one row for each text."""
        begin, end = self.tokenizer.cls_id, self.tokenizer.sep_id
        ids = [np.array([begin, *item.ids, end], dtype=np.int32) for item in items]
        return EncodedInputs([ModelRow(row, len(row), WHOLE_ROW) for row in ids])

    def forward(self, rows: Sequence[ModelRow], *, top_k: int = 5) -> list[list[Filled]]:
        """Return the candidates of each row. Each row is computed alone: its answer does not depend on the others."""
        return [candidates(self.model, self.tokenizer, row.ids[1:-1].tolist(), top_k=top_k) for row in rows]

    def numbers(self, output: list[Filled]) -> ArrayLike:
        """Return the probabilities of all candidates."""
        return [mask.probabilities for mask in output]

    def decode(self, inputs: EncodedInputs, outputs: Sequence[list[Filled]]) -> list[FilledText]:
        """Return the candidates for each [MASK] of each text."""
        return [
            FilledText(tuple(tuple(map(Piece, mask.pieces, mask.probabilities)) for mask in masks)) for masks in outputs
        ]


class AttentionPipeline(Pipeline[tuple[str, ...], EncodedInputs]):
    """The pieces of a text or pair as the model reads them (paper, figure 2), and the attention in one layer.

    The encoder is opened as it is trained, in fp32: the encoder that answers keeps no attention.
    """

    kind, form = "inside", "a text, or a tuple of two texts"
    example = (TextPipeline.example,)

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer) -> None:
        if not isinstance(saved.config, EncoderConfig):
            raise InputError(f"{saved.source}: is no single Transformer, so it has no attention to show")
        encoder = frozen_encoder(saved)
        assert isinstance(encoder, TransformerBackbone)
        self.encoder, self.tokenizer = encoder, tokenizer
        self.max_length = min(MOST_TOKENS, saved.config.max_positions)

    def parse(self, value: Any) -> tuple[str, ...] | None:
        """Return a tuple of one or two texts."""
        return (value,) if isinstance(value, str) else parse_pair(value)

    def encode(self, items: Sequence[tuple[str, ...]]) -> EncodedInputs:
        """Return one row for each input, with [MASK] as the token. Raises InputError for an input that is too long."""
        rows = []
        for item in items:
            tokenizer = self.tokenizer
            sides = tokenizer.ids(item, special=True) if isinstance(tokenizer, MaskTokenizer) else tokenizer.ids(item)
            first, *second = sides
            before, between, after = tokenizer.row_frame
            tail = [token for side in second for token in (*between, *side)]
            ids = [*before, *first, *tail, *after] or [tokenizer.unk_id]
            if len(ids) > self.max_length:
                raise InputError(f"the input has more than {self.max_length} tokens; attention is shown for fewer")
            begin = len(ids) - len(after) - len(second[0]) if second else len(ids)
            rows.append(ModelRow(np.array(ids, dtype=np.int32), begin, WHOLE_ROW))
        return EncodedInputs(rows)

    def forward(self, rows: Sequence[ModelRow], *, layer: int = 1) -> list[AttentionView]:
        """Return pieces, segments and the attention in `layer` (from 1 on) of each row.

        Each row is computed alone, so that equal inputs have equal answers. Raises InputError for an unknown layer.
        """
        if not 1 <= layer <= self.encoder.config.layers:
            raise InputError(f"layer {layer}: allowed are 1 to {self.encoder.config.layers}")
        with torch.inference_mode():
            return [self._view(row, layer) for row in rows]

    def _view(self, row: ModelRow, layer: int) -> AttentionView:
        batch = padded_batch([row], pad_id=self.tokenizer.pad_id)
        attention = self.encoder.attention(batch.ids, batch.segments, batch.mask, layer=layer - 1)[0]  # [H, T, T]
        return AttentionView(
            pieces=[self.tokenizer.readable_pieces[token] for token in batch.ids[0].tolist()],
            segments=batch.segments[0].tolist(),
            attention=[[[round(value, 4) for value in line] for line in head] for head in attention.tolist()],
        )

    def numbers(self, output: AttentionView) -> ArrayLike:
        """Return the attention of all heads."""
        return output.attention

    def decode(self, inputs: EncodedInputs, outputs: Sequence[AttentionView]) -> list[AttentionView]:
        """Return the outputs."""
        return list(outputs)
