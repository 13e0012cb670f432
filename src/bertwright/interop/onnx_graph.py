"""model → ONNX graph: one node of attention for each layer; any batch, any length.

torch's exporter would spell attention out in ten nodes, which ONNX Runtime does not put together again. So each layer's
attention is swapped for the node that ONNX Runtime has for it, with the projection of queries, keys and values inside.

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
"""As transformers names them; int64 [B, T], or [B, C, T] for choices."""
OPSET = 20
"""Of the nodes that are not ONNX Runtime's own: the first with Gelu, which runtimes since 1.17 (2024) read."""
MOST_INSIDE = 1_500_000_000
"""Bytes of weights that still go into the .onnx file, which may not grow to 2 GiB."""
_DOMAIN = "com.microsoft"
_ATTENTION = "Attention"


@dataclass(frozen=True)
class Written:
    """A graph as it was written: its `files`, and how many nodes of attention it has."""

    files: tuple[str, ...]
    attention_nodes: int


class _FusedAttention(nn.Module):
    """Attention in one node: it can be exported, not computed."""

    def __init__(self, plain: SelfAttention) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, hidden: Tensor, keep: Tensor, rows: None = None) -> Tensor:
        """[B, T, D] and the mask of keys [B, 1, 1, T] → [B, T, D]; no subset of rows."""
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
        """The outputs of the architecture, in its order."""
        return tuple(self.model(input_ids, token_type_ids, attention_mask != 0).values())


def write_graph(model: Bert, path: Path, *, metadata: Mapping[str, str]) -> Written:
    """Write `model` as `path`, weights above MOST_INSIDE bytes as a file beside it."""
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
    example = tuple(torch.ones(shape, dtype=torch.int64) for _ in INPUTS)  # one tensor thrice would be one input
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
        for part in (graph, *graph, *values):  # else the exporter's notes, paths of source files too, are in the file
            part.metadata_props.clear()
        program.model.producer_name, program.model.producer_version = "bertwright", __version__
        program.model.metadata_props.update(metadata)
        outside = sum(weight.nbytes for weight in model.parameters()) > MOST_INSIDE
        program.save(path, external_data=outside)
    files = tuple(sorted(file.name for file in path.parent.glob(f"{path.name}*")))
    return Written(files, sum(node.domain == _DOMAIN and node.op_type == _ATTENTION for node in graph))


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the libraries of ONNX say to those who develop them (which packages they lack, and the like)."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (UserWarning, FutureWarning, DeprecationWarning))
            yield
    finally:
        logging.disable(before)
