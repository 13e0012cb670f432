"""model → ONNX graph: one attention node for each layer, for batches of any size and rows of any length.

torch's exporter writes attention as ten nodes, which ONNX Runtime does not fuse. So each layer's attention is replaced
by ONNX Runtime's own attention node, which includes the projection of queries, keys and values.

Shapes: B batch, C choices, T tokens, D hidden.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bertwright.model.bert import ARCHITECTURES, Bert
from bertwright.model.encoder import SelfAttention
from bertwright.version import __version__

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the inputs, as in transformers; int64 [B, T], or [B, C, T] for choices."""
OPSET = 20
"""Version of ONNX's operators: the first with Gelu; ONNX Runtime reads it since 1.17 (2024)."""
MAX_INTERNAL_BYTES = 1_500_000_000
"""Largest size in bytes of weights inside the .onnx file, whose limit is 2 GiB."""
_DOMAIN = "com.microsoft"
_ATTENTION = "Attention"


@dataclass(frozen=True)
class Written:
    """A written graph: the names of its `files`, and its number of attention nodes."""

    files: tuple[str, ...]
    attention_nodes: int


class _FusedAttention(nn.Module):
    """Attention as one node. It can be exported, not computed."""

    def __init__(self, plain: SelfAttention) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, hidden: Tensor, keep: Tensor, rows: None = None) -> Tensor:
        """Return attention's output [B, T, D] for states [B, T, D] and a mask of keys [B, 1, 1, T]."""
        mask = keep[:, 0, 0, :].to(torch.int32)  # [B, T], 1 for keys that may be attended to
        context = torch.onnx.ops.symbolic(
            f"{_DOMAIN}::{_ATTENTION}",
            (hidden, self.plain.qkv.weight.t(), self.plain.qkv.bias, mask),
            {"num_heads": self.plain.heads},
            dtype=hidden.dtype,
            shape=hidden.shape,
            version=1,
        )
        merged: Tensor = self.plain.output(context)
        return merged


class _Named(nn.Module):
    """The model with transformers' inputs in transformers' order."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the architecture, in its order."""
        return tuple(self.model(input_ids, token_type_ids, attention_mask != 0).values())


def write_graph(model: Bert, path: Path, *, metadata: Mapping[str, str]) -> Written:
    """Write `model` as `path`. Weights of more than MAX_INTERNAL_BYTES go into a file beside it."""
    config = model.encoder.config
    shared = {id(weight): weight for weight in model.parameters()}
    fused = copy.deepcopy(model, shared)  # other modules, the same weights
    for layer in fused.encoder.layers:
        attention = layer.get_submodule("attention")
        assert isinstance(attention, SelfAttention)
        layer.register_module("attention", _FusedAttention(attention))
    choices = model.architecture == "BertForMultipleChoice"
    names = ("batch", "choices", "tokens") if choices else ("batch", "tokens")
    length = min(8, config.max_positions)
    shape = (2, 3, length) if choices else (2, length)
    # Three tensors: given three times, the exporter would take one tensor for one input.
    example = tuple(torch.ones(shape, dtype=torch.int64) for _ in INPUTS)
    dims = {
        axis: torch.export.Dim(name, max=config.max_positions) if name == "tokens" else torch.export.Dim(name)
        for axis, name in enumerate(names)
    }
    with quiet():
        program = torch.onnx.export(
            _Named(fused).eval(),
            example,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=(dims, dims, dims),
            input_names=INPUTS,
            output_names=ARCHITECTURES[model.architecture].outputs,
            verbose=False,
        )
        assert program is not None
        graph = program.model.graph
        values = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
        for part in (graph, *graph, *values):  # else the file holds the exporter's notes, with paths of source files
            part.metadata_props.clear()
        program.model.producer_name, program.model.producer_version = "bertwright", __version__
        program.model.metadata_props.update(metadata)
        external = sum(weight.nbytes for weight in model.parameters()) > MAX_INTERNAL_BYTES
        program.save(path, external_data=external)
    files = tuple(sorted(file.name for file in path.parent.glob(f"{path.name}*")))
    return Written(files, sum(node.domain == _DOMAIN and node.op_type == _ATTENTION for node in graph))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of the ONNX libraries, which are meant for their developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (UserWarning, FutureWarning, DeprecationWarning))
            yield
    finally:
        logging.disable(before)
