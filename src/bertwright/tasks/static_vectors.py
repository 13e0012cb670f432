"""texts → vectors [N, W] from a table with one vector for each piece: the layout of model2vec, read and written.

    config.json        {"model_type": "model2vec", "normalize": true, …}
    model.safetensors  embeddings [V, W]; a compressed table has fewer rows, with mapping [V] (piece → row), weights [V]
    modules.json       the same for sentence-transformers
    tokenizer.json     and the other files of the tokenizer

The vector of a text is the mean of the vectors of its pieces, without special tokens and unknown pieces.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from bertwright.errors import InputError, shown
from bertwright.files import check_digest, note_digest, read_object, write_json
from bertwright.model.folder import WEIGHTS, model_within
from bertwright.model.hf_config import STATIC
from bertwright.model.hf_weights import read_safetensors
from bertwright.model.vector_settings import MODULES, Similarity
from bertwright.shipped import folder_of
from bertwright.tables.reader import refuse_halves
from bertwright.tasks.sentence_vectors import SentenceEncoder, TextRole, open_sentence_encoder
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.training.settings import Device

LONG: Final = 1_000_000
"""Number of pieces that is noted as the maximum of a text; texts are not cut."""
_TEXTS: Final = 1024
"""Number of texts whose ids are in memory at a time."""


class StaticVectors:
    """A table of one vector for each piece. It computes on the processors, in fp32, and reads texts of any length.

    table: fp32 [V, W], one row for each piece of the tokenizer; rows of zeros count for nothing. normalize: True where
    vectors of texts are divided by their length. Raises InputError where table and tokenizer differ in size; `source`
    names the folder.
    """

    similarity: Similarity = "cosine"
    is_described = True

    def __init__(
        self, table: Tensor, tokenizer: BaseTokenizer, *, normalize: bool = True, source: str = "the table"
    ) -> None:
        if table.ndim != 2 or len(table) != tokenizer.vocab_size or not table.shape[1]:
            raise InputError(
                f"{source}: expected a vector for each of the {tokenizer.vocab_size:,} pieces of the tokenizer, got a "
                f"table of the shape {tuple(table.shape)}"
            )
        if not bool(table.isfinite().all()):
            raise InputError(f"{source}: the table holds infinite values or values that are no numbers")
        self.table, self.tokenizer, self.normalize = table.float(), tokenizer, normalize

    @property
    def size(self) -> int:
        """Return the number of components of a vector."""
        return self.table.shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 of all that decides the vectors: table, tokenizer and normalisation."""
        digest = hashlib.sha256(f"static {self.tokenizer.hash} {self.normalize} {tuple(self.table.shape)}".encode())
        digest.update(self.table.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def check_width(self, width: int | None, option: str) -> None:
        """Raise InputError where `width` is more than the vectors have; `option` names where it was given."""
        if width is not None and not 1 <= width <= self.size:
            raise InputError(f"{option} {width}: expected 1 to {self.size}, the size of this model's vectors")

    def vectors(
        self, texts: Sequence[str], role: TextRole = "text", *, width: int | None = None, first: int = 0
    ) -> NDArray[np.float32]:
        """Return the vectors [N, W] of N texts, in their order; a text without a known piece has zeros.

        The parameters are those of `SentenceEncoder.vectors`. No role has a prompt, and every vector is finite. Raises
        InputError for a width that the vectors do not have, and for a text with half of a surrogate pair.
        """
        self.check_width(width, "width")
        for number, text in enumerate(texts, start=first):
            refuse_halves([text], f"text {number} ")
        vectors = np.empty((len(texts), width or self.size), dtype=np.float32)
        for begin in range(0, len(texts), _TEXTS):
            rows, _ = self.rows(texts[begin : begin + _TEXTS], role)
            vectors[begin : begin + len(rows)] = self.of_rows(rows, width=width)
        return vectors

    def rows(
        self, texts: Sequence[str], role: TextRole = "text", *, max_length: int | None = None
    ) -> tuple[list[NDArray[np.int32]], list[bool]]:
        """Return the ids of each text, and True for each text that was cut at its end, after `max_length` pieces."""
        if max_length is not None and max_length < 1:
            raise InputError(f"max_length {max_length}: expected 1 or more")
        all_ids = self.tokenizer.ids(texts)
        cut = [max_length is not None and len(ids) > max_length for ids in all_ids]
        return [np.array(ids[:max_length], dtype=np.int32) for ids in all_ids], cut

    def of_rows(
        self,
        rows: Sequence[NDArray[np.int32]],
        role: TextRole = "text",
        *,
        width: int | None = None,
        progress: str = "",
    ) -> NDArray[np.float32]:
        """Return the vectors [N, W] of rows of ids. Unknown pieces are left out of the mean, as model2vec does.

        role and progress are those of `SentenceEncoder.of_rows`, and change nothing.
        """
        known = [row[row != self.tokenizer.unk_id] for row in rows]
        offsets = np.cumsum([0, *map(len, known)])[:-1]
        ids = np.concatenate([np.zeros(0, np.int32), *known])
        means = F.embedding_bag(torch.from_numpy(ids), self.table, torch.from_numpy(offsets).int(), mode="mean")
        means = F.normalize(means, dim=1) if self.normalize else means
        vectors: NDArray[np.float32] = means[:, :width].numpy()
        return vectors

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Write the layout into an empty folder; `config`: further entries of config.json."""
        self.tokenizer.save(folder)
        write_json(folder / "tokenizer.json", _without_added_tokens(read_object(folder / "tokenizer.json")))
        save_file({"embeddings": self.table.contiguous()}, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / WEIGHTS).chmod(folder.stat().st_mode & 0o666)  # save_file makes it readable for its owner alone
        note_digest(folder / WEIGHTS)
        modules = [(".", "StaticEmbedding"), *([("1_Normalize", "Normalize")] if self.normalize else [])]
        described = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
            for index, (path, name) in enumerate(modules)
        ]
        write_json(folder / MODULES, described)
        layout = {
            "model_type": STATIC,
            "architectures": ["StaticModel"],
            "hidden_dim": self.size,
            "normalize": self.normalize,
            "max_length": None,  # texts are not cut; readers that do not know this entry cut them at 512 pieces
            "seq_length": LONG,
            "embedding_dtype": "float32",
        }
        write_json(folder / "config.json", {**layout, **config})


TextVectors = SentenceEncoder | StaticVectors
"""Source of the vectors of texts: an encoder with its head, or a static table."""


def _without_added_tokens(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a tokenizer.json in which a text such as "[SEP]" is ordinary text, as it is here.

    An added token is found in every text. Its id stays: a token that the vocabulary lacks is put there.
    """
    added, vocab = tokenizer["added_tokens"], tokenizer["model"]["vocab"]
    if not isinstance(vocab, dict):  # that of Unigram is a list, in which a new piece would be found in texts too
        return {**tokenizer, "added_tokens": [token for token in added if token["id"] >= len(vocab)]}
    whole = {**vocab, **{token["content"]: token["id"] for token in added}}
    return {**tokenizer, "added_tokens": [], "model": {**tokenizer["model"], "vocab": whole}}


def is_static(model: str) -> bool:
    """Return True for the name of a folder in the layout of model2vec."""
    path = _static_folder(model) / "config.json"
    return path.is_file() and read_object(path).get("model_type") == STATIC


def open_static(model: str) -> StaticVectors:
    """Open a folder in the layout of model2vec.

    Raises InputError for a tokenizer other than BERT's or GPT-1's, and for a table that is missing, damaged or does not
    fit the tokenizer.
    """
    folder = _static_folder(model)
    weights = folder / WEIGHTS
    check_digest(weights)
    tensors = read_safetensors(weights)
    if "embeddings" not in tensors:
        raise InputError(f"{weights}: expected the tensor embeddings, got {', '.join(tensors) or 'none'}")
    table = _expanded(tensors, weights)
    normalize = read_object(folder / "config.json").get("normalize", False)
    if not isinstance(normalize, bool):
        raise InputError(f"{folder / 'config.json'}: normalize: expected true or false, got {shown(normalize)!r}")
    return StaticVectors(table, open_tokenizer_folder(folder), normalize=normalize, source=str(weights))


def _expanded(tensors: Mapping[str, Tensor], source: Path) -> Tensor:
    """Return the table fp32 [V, W] of embeddings, mapping and weights; the last two may be missing."""
    table, mapping, scales = tensors["embeddings"].float(), tensors.get("mapping"), tensors.get("weights")
    if table.ndim != 2:
        raise InputError(
            f"{source}: embeddings: expected a table of rows and columns, got the shape {list(table.shape)}"
        )
    if mapping is not None:
        if mapping.is_floating_point() or mapping.is_complex() or mapping.dtype == torch.bool or mapping.ndim != 1:
            raise InputError(
                f"{source}: mapping: expected a whole number for each piece, got {mapping.dtype} {list(mapping.shape)}"
            )
        rows = mapping.long()
        wrong = rows[(rows < 0) | (rows >= len(table))]
        if len(wrong):
            raise InputError(f"{source}: mapping: expected rows from 0 to {len(table) - 1}, got {int(wrong[0])}")
        table = table[rows]
    if scales is not None:
        if scales.shape != table.shape[:1]:
            raise InputError(
                f"{source}: weights: expected a number for each of the {len(table):,} pieces, got {list(scales.shape)}"
            )
        table = table * scales.float()[:, None]
    return table


def open_vectors(model: str, precision: str | None, device: Device) -> TextVectors:
    """Open MODEL for vectors of texts: an encoder in this precision and on this device, or a static table.

    Raises InputError for a static table with a precision or a device in which it is not computed.
    """
    if is_static(model):
        if device != "cpu" or precision not in (None, "auto", "fp32"):
            raise InputError(
                f"{model}: a static table is computed on the processors in fp32; leave --device and --precision out"
            )
        return open_static(model)
    return open_sentence_encoder(model, precision, device)


def _static_folder(model: str) -> Path:
    return model_within(folder_of(model))
