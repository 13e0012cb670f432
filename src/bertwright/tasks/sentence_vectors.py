"""texts → sentence vectors [N, W], as the settings in the model folder say; without settings the mean of all tokens."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertwright.console import say
from bertwright.errors import InputError, shown
from bertwright.model.backbones import Backbone
from bertwright.model.folder import SavedModel, weights_digest
from bertwright.model.vector_head import VectorHead, open_vector_head
from bertwright.model.vector_settings import Similarity, VectorSettings
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.finite import check_finite
from bertwright.tasks.inference import answered_batches, batches_by_length, open_answering, padded_inputs, ready
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import special_ids
from bertwright.training.hardware import module_device
from bertwright.training.settings import Device

TextRole = Literal["text", "query", "document"]
"""Role of a text: a query is searched with, a document is found; each may have a prompt of its own."""
_PROMPT_NAMES: dict[TextRole, tuple[str, ...]] = {
    "text": (),
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
"""Names of the prompts of a role, in the order in which sentence-transformers looks for them."""


def saved_vector_head(saved: SavedModel) -> VectorHead:
    """Return the head of a model folder; one that computes the mean of all tokens where the folder has no settings."""
    hidden = saved.config.hidden
    return open_vector_head(Path(saved.source), hidden) or VectorHead(VectorSettings(), hidden).eval()


def prompt_of(settings: VectorSettings, role: TextRole) -> str:
    """Return the prompt of texts of a role: that of its name, else the default prompt, else none."""
    names = [name for name in _PROMPT_NAMES[role] if name in settings.prompts]
    name = names[0] if names else settings.default_prompt
    return "" if name is None else settings.prompts[name]


def limit_of(settings: VectorSettings, role: TextRole, max_length: int) -> int:
    """Return the maximum number of tokens of texts of a role, where it is `max_length` for all other texts."""
    return settings.query_length or max_length if role == "query" else max_length


def say_cut(num_cut: int, count: int, texts: str) -> None:
    """Print how many of `count` texts were cut, where any was. `texts`: plural of what they are."""
    if num_cut:
        say(f"{num_cut:,} of {count:,} {texts} have more tokens than the model reads, and are cut")


def num_prompt_tokens(tokenizer: BaseTokenizer, prompt: str, *, max_length: int | None = None) -> int:
    """Return the number of tokens of a prompt, with those before it such as [CLS]; 0 without a prompt.

    Raises InputError, which shows the prompt, where it leaves no room for a text in `max_length` tokens.
    """
    if not prompt:
        return 0
    begin, end = special_ids(tokenizer)
    count = len(begin) + len(tokenizer.ids([prompt])[0])
    if max_length is not None and count + len(end) >= max_length:
        raise InputError(
            f"the prompt '{shown(prompt)}' has {count + len(end)} tokens, special tokens included, and leaves no room "
            f"for a text in {max_length}: shorten it, or set a larger maximum number of tokens"
        )
    return count


def text_limit(saved: SavedModel, settings: VectorSettings) -> int:
    """Return the maximum number of tokens of a text of a model folder."""
    positions = saved.config.max_positions
    return min(settings.max_length or positions, positions)


def fingerprint_of(saved: SavedModel, tokenizer: BaseTokenizer, head: VectorHead) -> str:
    """Return a sha256 of all that decides the vectors: weights, configuration, settings of vectors and tokenizer.

    Precision and device are no part of it. Raises InputError for random weights.
    """
    weights = weights_digest(saved)
    if weights is None:
        raise InputError(f"{saved.source}: random weights have no fingerprint; name a model folder")
    digest = hashlib.sha256(f"{weights} {tokenizer.hash} {text_limit(saved, head.settings)}".encode())
    for each in (saved.config, head.settings):  # without defaults, so that a new setting changes nothing
        digest.update(each.model_dump_json(exclude_defaults=True).encode())
    for name, tensor in sorted(head.state_dict().items()):
        digest.update(name.encode() + tensor.float().cpu().numpy().tobytes())
    return digest.hexdigest()


class SentenceEncoder:
    """An encoder and its head, ready for inference in the precision and on the device of `saved`.

    head: None for that of the model folder. Raises InputError for settings of vectors that cannot be used, and without
    the device.
    """

    def __init__(self, saved: SavedModel, tokenizer: BaseTokenizer, head: VectorHead | None = None) -> None:
        module = ready(nn.ModuleDict({"encoder": frozen_encoder(saved)}), saved)
        self.encoder, self.tokenizer = cast(Backbone, module["encoder"]), tokenizer
        self.head = (head or saved_vector_head(saved)).to(module_device(self.encoder))
        self.settings = self.head.settings
        self.settings.check_pieces(tokenizer.vocab_size, saved.source)
        self.max_length = text_limit(saved, self.settings)
        self.pad_id = saved.config.pad_id
        self._described = saved if saved.weights is None else replace(saved, weights={})  # the encoder has the tensors

    @property
    def size(self) -> int:
        """Return the number of components of a vector."""
        return self.head.size

    @property
    def similarity(self) -> Similarity:
        """Return the similarity of two vectors that the folder names."""
        return self.settings.similarity

    @property
    def is_described(self) -> bool:
        """Return True where the folder describes its vectors; False where the mean of all tokens stands in."""
        return self.settings != VectorSettings()

    @cached_property
    def fingerprint(self) -> str:
        """Return `fingerprint_of` this encoder."""
        return fingerprint_of(self._described, self.tokenizer, self.head)

    def check_width(self, width: int | None, option: str) -> None:
        """Raise InputError where `width` is more than the vectors have; `option` names where it was given."""
        if width is not None and not 1 <= width <= self.size:
            raise InputError(f"{option} {width}: expected 1 to {self.size}, the size of this model's vectors")

    def limit(self, role: TextRole) -> int:
        """Return the maximum number of tokens of texts of a role."""
        return min(limit_of(self.settings, role, self.max_length), self.encoder.config.max_positions)

    def rows(
        self,
        texts: Sequence[str],
        role: TextRole = "text",
        *,
        max_length: int | None = None,
        prompt: str | None = None,
    ) -> tuple[list[NDArray[np.int32]], list[bool]]:
        """Return the ids of each text with the prompt of its role, and True for each text that was cut at its end.

        max_length: maximum number of tokens of a row; None is that of the folder for the role. prompt: another prompt
        than that of the role; "" is none. Raises InputError where no room is left for a text behind the prompt.
        """
        limit = self.limit(role) if max_length is None else max_length
        prompt = prompt_of(self.settings, role) if prompt is None else prompt
        begin, end = special_ids(self.tokenizer)
        room = limit - len(begin) - len(end)
        if room < 1 or limit > self.encoder.config.max_positions:
            positions = self.encoder.config.max_positions
            raise InputError(f"max_length {limit}: expected 3 to {positions}, the positions of this model")
        num_prompt_tokens(self.tokenizer, prompt, max_length=limit)
        all_ids = self.tokenizer.ids([prompt + text for text in texts])
        rows = [np.array([*begin, *ids[:room], *end] or [self.tokenizer.unk_id], dtype=np.int32) for ids in all_ids]
        return rows, [len(ids) > room for ids in all_ids]

    def of_rows(
        self,
        rows: Sequence[NDArray[np.int32]],
        role: TextRole = "text",
        *,
        width: int | None = None,
        progress: str = "",
        prompt: str | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors [N, W] of rows of ids; see `vectors`.

        progress: end of the progress line; "" shows none. prompt: that with which the rows were made, as in `rows`.
        """
        prompt = prompt_of(self.settings, role) if prompt is None else prompt
        skipped = num_prompt_tokens(self.tokenizer, prompt)
        vectors = np.empty((len(rows), width or self.size), dtype=np.float32)
        device = module_device(self.encoder)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        with torch.inference_mode():
            for batch in answered_batches(lengths, progress) if progress else batches_by_length(lengths):
                inputs = padded_inputs([rows[index] for index in batch], pad_id=self.pad_id)
                ids, segments, mask = (tensor.to(device) for tensor in inputs)
                states = self.encoder(ids, segments, mask).last
                vectors[batch] = self.head(states, mask, ids, prompt=skipped, width=width).float().cpu().numpy()
        return vectors

    def vectors(
        self, texts: Sequence[str], role: TextRole = "text", *, width: int | None = None, first: int = 0
    ) -> NDArray[np.float32]:
        """Return the vectors [N, W] of N texts, in their order.

        width: number of components W; None is that of the folder. Raises RunFailed for a vector that is not finite;
        its message counts texts from `first`.
        """
        rows, cut = self.rows(texts, role)
        say_cut(sum(cut), len(cut), "texts")
        vectors = self.of_rows(rows, role, width=width, progress="vectors computed")
        check_finite(vectors, "text {}".format, first=first)
        return vectors


def open_sentence_encoder(model: str, precision: str | None, device: Device) -> SentenceEncoder:
    """Open a model folder, or a run folder, for vectors, in the precision and on the device of inference."""
    saved = open_answering(model, precision, device)
    return SentenceEncoder(saved, open_tokenizer(saved))
