"""pairs of texts → batches → loss; vectors → metrics: training of vectors (Reimers and Gurevych 2019; Gao et al. 2021).

The rows of a batch are each other's negatives, so a batch is computed as a whole. Texts that match an anchor are never
its negatives: they are masked in the loss.

Shapes: B pairs of a batch, A first texts, P second texts and hard negatives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig, attends_both_ways
from bertwright.model.folder import SavedModel, model_within
from bertwright.model.hf_config import read_description
from bertwright.model.vector_settings import read_vector_settings
from bertwright.shipped import folder_of
from bertwright.tables.writer import PredictRequest
from bertwright.tasks.binding import BoundTask, LabelledData, ModelToSave, TaskKind
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.embedding.losses import cosent, cosines, in_batch_softmax, mean_over_widths
from bertwright.tasks.embedding.measure import measure_tables, roles_of
from bertwright.tasks.embedding.metrics import vector_metrics
from bertwright.tasks.embedding.model import (
    EncodedSide,
    TextPart,
    VectorModel,
    needs_caching,
    parts_of,
    text_vectors,
    vectors_of_parts,
)
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.read import read_measured, read_vector_data, refuse_unused_scores
from bertwright.tasks.embedding.spec import DOCUMENT, QUERY, VectorTask, with_vectors
from bertwright.tasks.errors import EvaluateRequest
from bertwright.tasks.metrics import measure
from bertwright.tasks.sentence_vectors import SentenceEncoder, TextRole, limit_of, num_prompt_tokens, prompt_of
from bertwright.tasks.spec import TaskSpec
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.distributed import Trainable

EncodedPairs = tuple[EncodedSide, EncodedSide]
"""First texts, and second texts with hard negatives."""


@dataclass(frozen=True)
class PairBatch:
    """A batch of pairs, each text once.

    parts      the first texts, then the second ones, in parts that are computed one after another
    firsts     [A] position of each first text among the vectors of all parts
    seconds    [P] the same of the second texts
    anchors    [B] first text of each pair
    targets    [B] second text of each pair
    matching   [A, P] True where two texts match
    scores     [B] score of each pair; None where every pair matches
    cached     True where activations are computed anew for the backward pass (gradient caching)
    """

    parts: tuple[TextPart, ...]
    firsts: Tensor
    seconds: Tensor
    anchors: Tensor
    targets: Tensor
    matching: Tensor
    scores: Tensor | None
    cached: bool = False


_LONGEST: Final = 512
"""Largest number of tokens that is taken from a model folder."""


def default_length(task: TaskSpec, model: str) -> int:
    """Return the maximum number of tokens of a task where none is set: for vectors that of the model's folder, if any.

    It is at most `_LONGEST`, since the vectors of longer texts need much memory and time; a line tells that.
    """
    folder = model_within(folder_of(model))
    described = folder / "config.json"
    if not isinstance(task, VectorTask) or not described.is_file():  # `open_model` names what is not there
        return task.max_length
    positions = read_description(described).config.max_positions
    stored = read_vector_settings(folder)
    if stored is None or stored.max_length is None:
        return task.max_length
    length = min(stored.max_length, positions)
    if length > _LONGEST:
        say(f"{model}: reads {length:,} tokens, and is trained and read with {_LONGEST} from now on; set --max-length")
    return min(length, _LONGEST)


class VectorKind(TaskKind):
    """Vectors of texts."""

    spec = VectorTask
    architecture = "BertModel"
    head = "vectors"
    unit = "pairs"
    contrasts = True

    def read(self, task: VectorTask, data: Path) -> LabelledData:
        return read_vector_data(task, data)

    def for_model(self, task: VectorTask, saved: SavedModel, max_length: int) -> VectorTask:
        """Return the task with the settings of vectors of the model folder, where it has some."""
        if task.mine and saved.weights is None:
            raise InputError(f"--task-setting mine={task.mine}: expected a pre-trained model, got {saved.source}")
        stored = None if saved.weights is None else read_vector_settings(Path(saved.source))
        return with_vectors(task, stored, hidden=saved.config.hidden, max_length=max_length, source=saved.source)

    def check(self, data: LabelledData, config: BackboneConfig) -> None:
        """Raise InputError for a model that does not attend both ways, MissingExtra without the metrics' libraries."""
        if not attends_both_ways(config):
            raise InputError(f"{data.task.name}: expected an encoder whose tokens attend to both sides, such as BERT")
        _check_mining(data.task, data.train)
        refuse_unused_scores(data.task, (data.train, *data.validation.values()), data.train.source)
        if data.task.symmetric and data.train.scores is not None:
            raise InputError(
                f"--task-setting symmetric=true: expected pairs that match in {data.train.source}, got pairs with "
                "scores, whose two texts are compared in one way alone"
            )
        if data.train.alike:
            _check_settings_of_roles(data.task, data.train.source)
        if any(pairs.scores is not None for pairs in data.validation.values()):
            measure(("spearman",), np.arange(2.0), np.arange(2.0))

    def encode(
        self, task: VectorTask, tokenizer: BaseTokenizer, rows: TextPairs, max_length: int, *, train: bool = False
    ) -> EncodedPairs:
        """Return the token ids of first and second texts, each with its prompt."""
        task.vectors.check_pieces(tokenizer.vocab_size, "the model")
        sides = []
        for texts, role in zip((rows.firsts, rows.seconds), roles_of(rows), strict=True):
            limit = limit_of(task.vectors, role, max_length)
            side, cut = encode_side(task, tokenizer, texts, role, max_length=limit)
            _say_cut(rows, cut, len(texts), "texts", limit)
            sides.append(side)
        return sides[0], sides[1]

    def token_ids(self, inputs: EncodedPairs) -> list[NDArray[np.int32]]:
        """Return the ids of the first texts, and of the second ones."""
        return [ids for side in inputs for ids in side.ids]

    def targets(self, task: VectorTask, rows: TextPairs, inputs: EncodedPairs) -> TextPairs:
        """Return the pairs: they have the numbers of their texts."""
        return rows

    def lengths(self, rows: TextPairs, inputs: EncodedPairs) -> NDArray[np.int64]:
        """Return the number of tokens of each pair's texts and hard negatives [N]."""
        firsts, seconds = (np.array([len(ids) for ids in texts.ids]) for texts in inputs)
        negatives = [int(seconds[list(row)].sum()) for row in rows.negatives]
        return np.asarray(firsts[rows.anchors] + seconds[rows.positives] + np.array(negatives, dtype=np.int64))

    def collate(self, bound: BoundTask, chosen: NDArray[np.int64]) -> PairBatch:
        rows: TextPairs = bound.targets
        batch = pair_batch(rows, bound.train[1], chosen, pad_id=bound.config.pad_id)
        return replace(batch, cached=needs_caching(bound.config, batch.parts))

    def model(self, task: VectorTask, config: BackboneConfig) -> VectorModel:
        return VectorModel(config, task.vectors)

    def loss(self, task: VectorTask, model: nn.Module, batch: PairBatch) -> Tensor:
        """Return the loss summed over pairs; CoSENT's, which is one number for a batch, times the number of pairs."""
        vectors = vectors_of_parts(model, batch.parts, cached=batch.cached)
        sides = (vectors[batch.firsts], vectors[batch.seconds])

        def of_width(firsts: Tensor, seconds: Tensor) -> Tensor:
            return batch_loss(task, cosines(firsts, seconds), batch)

        return mean_over_widths(of_width, sides, _widths(task, vectors.shape[1]))

    def trainable(self, task: VectorTask, model: Any) -> Trainable[PairBatch]:
        """Return what the training loop trains; `tokens` are those of all parts."""
        trainable = super().trainable(task, model)
        return replace(trainable, tokens=lambda batch: sum(int(part.mask.sum()) for part in batch.parts))

    def count(self, batch: PairBatch) -> float:
        return float(len(batch.targets))

    def flops(self, model: VectorModel, batch: PairBatch) -> float:
        """Return the floating-point operations of forward and backward; parts that are computed twice count once."""
        shapes = [part.ids.shape for part in batch.parts]
        return sum(3.0 * texts * float(model.encoder.flops(length, length)) for texts, length in shapes)

    def logits(self, model: VectorModel, inputs: EncodedPairs) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the vectors of first and second texts."""
        return text_vectors(model, inputs[0]), text_vectors(model, inputs[1])

    def metrics(self, task: VectorTask, logits: Any, rows: TextPairs, inputs: EncodedPairs) -> dict[str, float]:
        return vector_metrics(rows, *logits)

    def to_save(
        self, task: VectorTask, model: VectorModel, metrics: Mapping[str, float], max_length: int
    ) -> ModelToSave:
        """Return the encoder, with the settings of its vectors; the folder notes no task, since it predicts nothing."""
        encoder = nn.ModuleDict({"encoder": model.encoder})
        return ModelToSave(encoder, self.architecture, (), {}, vectors=model.vectors)

    def evaluate(
        self, task: VectorTask, saved: SavedModel, tokenizer: BaseTokenizer, request: EvaluateRequest
    ) -> dict[str, Any]:
        """Return the metrics of `measure_tables` on the pairs that are kept for validation, or on one file."""
        if request.errors:
            raise InputError("--errors: vectors have no wrong answers; leave the option out")
        return measure_tables(SentenceEncoder(saved, tokenizer), read_measured(task, request.data))

    def predict(self, saved: SavedModel, tokenizer: BaseTokenizer, request: PredictRequest) -> dict[str, Any]:
        """Raise InputError: there is nothing to predict."""
        raise InputError(
            f"{saved.source}: gives vectors and predicts no labels; use bertwright.load(MODEL).vectors(texts), "
            "or /v1/embeddings of: bertwright serve"
        )


def with_more_seconds(bound: BoundTask, rows: TextPairs, tokenizer: BaseTokenizer) -> BoundTask:
    """Return the bound task with these training pairs: those that it has, with more texts behind its second ones."""
    pairs, (firsts, seconds) = bound.train
    added = rows.seconds[len(pairs.seconds) :]
    side, cut = encode_side(bound.task, tokenizer, added, roles_of(rows)[1], max_length=bound.max_length)
    _say_cut(rows, cut, len(added), "mined texts", bound.max_length)
    inputs = firsts, replace(seconds, ids=(*seconds.ids, *side.ids))
    lengths = bound.kind.lengths(rows, inputs)
    return replace(bound, train=(rows, inputs), targets=rows, lengths=lengths, tokens=lengths)


def _say_cut(rows: TextPairs, cut: int, texts: int, name: str, max_length: int) -> None:
    if cut:
        say(f"{rows.source}: {cut:,} of {texts:,} {name} exceed {max_length} tokens and are cut")


def _check_settings_of_roles(task: VectorTask, source: str) -> None:
    """Raise InputError for a length of queries where the texts are of one kind; print prompts that no text gets."""
    if task.query_length:
        raise InputError(
            f"--task-setting query_length={task.query_length}: expected queries and documents in {source}, got texts "
            "of one kind, which have one maximum: --max-length"
        )
    for name, text in ((QUERY, task.query_prompt), (DOCUMENT, task.document_prompt)):
        if text and name != task.vectors.default_prompt:
            say(
                f"--task-setting {name}_prompt={text}: no text of this training gets it, because those in {source} are "
                f"of one kind and have the default prompt; the model is searched with a prompt that it has not "
                f"learned: add --task-setting default_prompt={name}, or leave it out"
            )


def _check_mining(task: VectorTask, pairs: TextPairs) -> None:
    """Raise InputError for settings of mining that these training pairs cannot have."""
    if task.mine is None:
        if task.mine_margin is not None:
            raise InputError(f"--task-setting mine_margin={task.mine_margin:g}: expected mine=K beside it")
        return
    kind = "pairs with scores" if pairs.scores is not None else "texts that match themselves" if pairs.twins else None
    if kind:
        raise InputError(
            f"--task-setting mine={task.mine}: expected pairs of an anchor and a positive in {pairs.source}, got "
            f"{kind}, which have no hard negatives"
        )


def encode_side(
    task: VectorTask, tokenizer: BaseTokenizer, texts: Sequence[str], role: TextRole, *, max_length: int
) -> tuple[EncodedSide, int]:
    """Return the token ids of texts with the prompt of their role, and the number of texts that were cut."""
    prompt = prompt_of(task.vectors, role)
    num_tokens = num_prompt_tokens(tokenizer, prompt, max_length=max_length)
    encoded = encode(tokenizer, [f"{prompt}{text}" for text in texts], max_length=max_length)
    return EncodedSide(encoded.ids, num_tokens), encoded.num_truncated


def batch_loss(task: VectorTask, scores: Tensor, batch: PairBatch) -> Tensor:
    """Return the loss of a batch, summed over pairs, from the cosines [A, P] of its texts."""
    if batch.scores is not None:
        loss = cosent(scores[batch.anchors, batch.targets], batch.scores, temperature=task.divisor)
        return loss * len(batch.targets)
    loss = in_batch_softmax(
        scores[batch.anchors], batch.targets, batch.matching[batch.anchors], temperature=task.divisor
    )
    if not task.symmetric:
        return loss
    backwards = in_batch_softmax(
        scores.T[batch.targets], batch.anchors, batch.matching.T[batch.targets], temperature=task.divisor
    )
    return (loss + backwards) / 2


def pair_batch(rows: TextPairs, inputs: EncodedPairs, chosen: NDArray[np.int64], *, pad_id: int) -> PairBatch:
    """Return these pairs, each text once."""
    firsts, anchors = np.unique(rows.anchors[chosen], return_inverse=True)
    positives = rows.positives[chosen]
    negatives = [np.array(rows.negatives[row], dtype=np.int64) for row in chosen]
    seconds = np.unique(np.concatenate([positives, *negatives]))
    first_parts, first_positions = parts_of(inputs[0], firsts, pad_id=pad_id)
    second_parts, second_positions = parts_of(inputs[1], seconds, pad_id=pad_id)
    return PairBatch(
        parts=(*first_parts, *second_parts),
        firsts=torch.from_numpy(first_positions),
        seconds=torch.from_numpy(second_positions + len(firsts)),
        anchors=torch.from_numpy(anchors),
        targets=torch.from_numpy(np.searchsorted(seconds, positives)),
        matching=torch.from_numpy(rows.match(firsts, seconds)),
        scores=None if rows.scores is None else torch.from_numpy(rows.scores[chosen]),
    )


def _widths(task: VectorTask, size: int) -> tuple[int, ...]:
    """Return the Matryoshka widths, the whole vector included; none where the loss takes the whole vector alone."""
    widths = task.vectors.widths
    return (size, *(width for width in widths if width != size)) if widths else ()


EMBEDDING = VectorKind()
