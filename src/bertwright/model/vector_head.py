"""token states [N, T, D] → sentence vectors [N, W]: pooling, dense layers, normalisation, truncation.

Training computes this with gradients; answering computes the same. The layout of sentence-transformers is in
`vector_settings`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load, save, save_file
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.files import check_digest, note_digest
from bertwright.model.heads import for_loss
from bertwright.model.hf_weights import read_safetensors
from bertwright.model.vector_settings import (
    DenseLayer,
    Pooling,
    VectorSettings,
    dense_folders,
    read_vector_settings,
    write_vector_settings,
)

_DENSE_WEIGHTS = "model.safetensors"


class DenseBlock(nn.Module):
    """A linear layer and its activation, on vectors [N, inputs] → [N, outputs]."""

    def __init__(self, layer: DenseLayer) -> None:
        super().__init__()
        self.linear = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
        self.activation: nn.Module = getattr(nn, layer.activation)()

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors [N, outputs]."""
        out: Tensor = self.activation(self.linear(vectors))
        return out


class VectorHead(nn.Module):
    """The part of a model that turns token states into one vector for each text.

    settings: see `VectorSettings`. hidden: width D of the states. Raises InputError where the two do not fit; `source`
    names the folder for the message.
    """

    piece_weights: Tensor | None

    def __init__(self, settings: VectorSettings, hidden: int, *, source: str = "vectors") -> None:
        super().__init__()
        settings.check_fit(hidden, source)
        self.settings, self.hidden = settings, hidden
        self.dense = nn.ModuleList(DenseBlock(layer) for layer in settings.dense)
        weights = torch.tensor(settings.piece_weights, dtype=torch.float32) if settings.piece_weights else None
        self.register_buffer("piece_weights", weights, persistent=False)  # the settings have them

    @property
    def size(self) -> int:
        """Return the number of components of a vector."""
        size = self.settings.size(self.hidden)
        return min(size, self.settings.width or size)

    def forward(
        self, states: Tensor, mask: Tensor, ids: Tensor | None = None, *, prompt: int = 0, width: int | None = None
    ) -> Tensor:
        """Return vectors [N, W] of the states [N, T, D] of the last layer.

        mask [N, T] is true where there is a token. ids [N, T] are needed where pieces have weights; training computes
        without these weights, since vectors that were trained with them are worse (docs/log.md). prompt: number of
        first tokens of each row that belong to the prompt, [CLS] included; they count only where the settings include
        the prompt. width: number of components W; None is that of the settings. The vectors have at least the precision
        fp32.
        """
        if self.settings.include_prompt:
            prompt = 0
        weights = None
        if self.piece_weights is not None and not self.training:
            assert ids is not None
            weights = self.piece_weights[ids]
        pooled = [pool_states(states, mask, mode, prompt=prompt, weights=weights) for mode in self.settings.pooling]
        vectors = torch.cat(pooled, dim=-1)
        for block in self.dense:
            vectors = block(vectors)
        if self.settings.normalize:
            vectors = F.normalize(vectors, dim=-1)
        return vectors[:, : width or self.settings.width]


def pool_states(
    states: Tensor, mask: Tensor, mode: Pooling, *, prompt: int = 0, weights: Tensor | None = None
) -> Tensor:
    """Return the pooled vectors [N, D] of states [N, T, D]; a row without a token to pool gives zeros.

    mask [N, T] is true where there is a token. The first `prompt` tokens of each row are left out; the weights of
    weightedmean still count them. weights [N, T]: factors of the states in a mean.
    """
    states, tokens = for_loss(states), mask.bool()
    position = tokens.cumsum(1)  # 1 at the first token of a row
    kept = tokens & (position > prompt)
    if mode in ("cls", "lasttoken"):
        order = kept.int() if mode == "cls" else kept * position
        chosen = torch.zeros_like(kept).scatter(1, order.argmax(1, keepdim=True), True) & kept
        return states.masked_fill(~chosen[:, :, None], 0.0).sum(1)
    if mode == "max":
        largest = states.masked_fill(~kept[:, :, None], -torch.inf).amax(1)
        return torch.where(kept.any(1, keepdim=True), largest, torch.zeros_like(largest))
    counted = (kept * position if mode == "weightedmean" else kept).to(states.dtype)
    weights = counted if weights is None else counted * weights
    total = weights.sum(1, keepdim=True).clamp(min=1e-9)  # as in sentence-transformers
    divisor = total.sqrt() if mode == "mean_sqrt_len_tokens" else total
    clean = states.masked_fill(~kept[:, :, None], 0.0)  # 0 × NaN of a masked position would be NaN
    return torch.einsum("ntd,nt->nd", clean, weights) / divisor


def open_vector_head(
    folder: Path, hidden: int, *, read: Callable[[Path], Mapping[str, Tensor]] | None = None
) -> VectorHead | None:
    """Open the head of a model folder, in evaluation mode; None where the folder has no settings of vectors.

    hidden: width of the model's states. read: folder of a dense layer → its tensors; None reads model.safetensors.
    Raises InputError for modules that are not computed here, and for weights that are missing or of another shape.
    """
    settings = read_vector_settings(folder)
    if settings is None:
        return None
    head = VectorHead(settings, hidden, source=str(folder))
    for block, path in zip(head.dense, dense_folders(folder), strict=True):
        stored = (read or _dense_weights)(path)
        expected = {name: tuple(tensor.shape) for name, tensor in block.state_dict().items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
        if shapes != expected:
            raise InputError(f"{path}: expected the tensors {expected}, as config.json says, got {shapes}")
        broken = [name for name, tensor in stored.items() if not bool(tensor.isfinite().all())]
        if broken:
            raise InputError(f"{path}: {broken[0]} holds infinite values or values that are no numbers")
        block.load_state_dict(dict(stored))
    return head.eval()


def write_vector_head(folder: Path, head: VectorHead, *, positions: int) -> None:
    """Write settings and dense weights into a model folder that is not finished yet, as sentence-transformers does.

    positions: number of positions of the model.
    """
    write_vector_settings(folder, head.settings, hidden=head.hidden, positions=positions)
    for block, path in zip(head.dense, dense_folders(folder), strict=True):
        stored = path / _DENSE_WEIGHTS
        tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in block.state_dict().items()}
        save_file(tensors, stored, metadata={"format": "pt"})
        stored.chmod(folder.stat().st_mode & 0o666)  # save_file makes it readable for its owner alone
        note_digest(stored)


def head_bytes(head: VectorHead) -> dict[str, Any]:
    """Return a head as plain data and bytes of safetensors, from which `head_of_bytes` makes it again."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    return {"settings": head.settings.model_dump(mode="json"), "hidden": head.hidden, "weights": save(weights)}


def head_of_bytes(stored: Mapping[str, Any]) -> VectorHead:
    """Return the head that `head_bytes` stored, in evaluation mode."""
    head = VectorHead(VectorSettings.model_validate(stored["settings"]), stored["hidden"])
    head.load_state_dict(load(stored["weights"]))
    return head.eval()


def _dense_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / _DENSE_WEIGHTS
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; the weights of a dense layer are there")
    check_digest(path)
    return read_safetensors(path)
