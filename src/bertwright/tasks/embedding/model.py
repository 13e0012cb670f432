"""token ids → vectors: the encoder and the pooling, and gradient caching for large batches.

Shapes: N texts, T tokens, D width of the vectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig
from bertwright.model.vector_head import VectorHead
from bertwright.model.vector_settings import VectorSettings
from bertwright.tasks.inference import answered_batches, evaluating, padded_inputs
from bertwright.training.hardware import module_device, move_to_device

PART_TOKENS: Final = 4096
"""Number of tokens that are computed at a time in training, at most, padding included."""
SMALL_PART: Final = 512
"""Number of tokens up to which a part takes shorter texts too: smaller parts cost more than their padding."""
SIMILAR_LENGTH: Final = 0.8
"""Length of a text that joins a larger part, as a fraction of the part's longest text, at least."""
KEPT_STATES: Final = 1 << 25
"""Number of components of hidden states, over all layers, up to which a batch of many parts keeps its activations.

Some twenty numbers are kept for each, which are 2.7 GB in fp32.
"""


@dataclass(frozen=True)
class TextPart:
    """Some texts, padded: ids, segments and mask [N, T]; `prompt` tokens of each belong to the prompt."""

    ids: Tensor
    segments: Tensor
    mask: Tensor
    prompt: int = 0


@dataclass(frozen=True)
class EncodedSide:
    """Token ids of texts with the prompt before them; `prompt` is its number of tokens, [CLS] included."""

    ids: tuple[NDArray[np.int32], ...]
    prompt: int

    def part(self, texts: Sequence[int] | NDArray[np.int64], *, pad_id: int) -> TextPart:
        """Return these texts, padded to the longest."""
        return TextPart(*padded_inputs([self.ids[text] for text in texts], pad_id=pad_id), prompt=self.prompt)


class VectorModel(nn.Module):
    """An encoder, and the pooling that turns the states of a text into its vector."""

    def __init__(self, config: BackboneConfig, settings: VectorSettings) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
        self.vectors = VectorHead(settings, config.hidden)

    def forward(self, part: TextPart) -> Tensor:
        """Return the vectors [N, D] of some texts."""
        part = move_to_device(part, module_device(self))
        states = self.encoder(part.ids, part.segments, part.mask).last
        vectors: Tensor = self.vectors(states, part.mask, part.ids, prompt=part.prompt)
        return vectors


def similar_lengths(lengths: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Yield the text numbers of each part, longest texts first, with `most` tokens at most unless one text has more.

    A part of more than SMALL_PART tokens, padding included, has texts of similar lengths, so that little is padding.
    """
    order, begin = np.argsort(-lengths, kind="stable"), 0
    while begin < len(order):
        longest, end = int(lengths[order[begin]]), begin + 1
        while end < len(order):
            tokens = (end + 1 - begin) * longest
            if tokens > most or (tokens > SMALL_PART and lengths[order[end]] < SIMILAR_LENGTH * longest):
                break
            end += 1
        yield order[begin:end]
        begin = end


def parts_of(
    texts: EncodedSide, chosen: NDArray[np.int64], *, pad_id: int, most: int | None = None
) -> tuple[tuple[TextPart, ...], NDArray[np.int64]]:
    """Return the chosen texts in parts of similar lengths, and the position of each text [N] among all parts.

    most: largest number of tokens of a part, padding included; PART_TOKENS where it is None.
    """
    rows = list(similar_lengths(np.array([len(texts.ids[text]) for text in chosen]), most or PART_TOKENS))
    positions = np.empty(len(chosen), dtype=np.int64)
    positions[np.concatenate(rows)] = np.arange(len(chosen))
    return tuple(texts.part(chosen[part], pad_id=pad_id) for part in rows), positions


def needs_caching(config: BackboneConfig, parts: Sequence[TextPart]) -> bool:
    """Return True where the activations of all parts take much memory, and those of one part much less."""
    states = sum(part.ids.numel() for part in parts) * config.layers * config.hidden
    return len(parts) > 2 and states > KEPT_STATES


def vectors_of_parts(model: nn.Module, parts: Sequence[TextPart], *, cached: bool) -> Tensor:
    """Return the vectors [N, D] of all parts, one after another.

    With `cached` no activations are kept, so memory does not grow with the number of parts. The backward pass takes the
    gradient of the loss at the vectors, and computes each part again with the dropout that it had (GradCache, Gao et
    al. 2021). The gradients are those of the whole batch.
    """
    if not cached:
        return torch.cat([model(part) for part in parts])
    computed: Any = [checkpoint(model, part, use_reentrant=False) for part in parts]
    return torch.cat(computed)


def text_vectors(model: VectorModel, texts: EncodedSide) -> NDArray[np.float32]:
    """Return the vectors [N, D] of all texts, computed with dropout off."""
    vectors = np.zeros((len(texts.ids), model.vectors.size), dtype=np.float32)
    with evaluating(model):
        for rows in answered_batches(np.array([len(ids) for ids in texts.ids]), "texts encoded"):
            vectors[rows] = model(texts.part(rows, pad_id=model.encoder.config.pad_id)).float().cpu().numpy()
    return vectors
