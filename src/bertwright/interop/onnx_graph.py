"""model → ONNX graph: one attention node for each layer, for batches of any size and rows of any length.

torch's exporter writes attention as ten nodes, which ONNX Runtime does not fuse and computes slowly. So each layer's
attention is replaced, before the export, by ONNX Runtime's own attention node. This node includes the projection of
queries, keys and values.

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

from bertwright.model.attention import SelfAttention
from bertwright.model.bert import Bert
from bertwright.model.encoder import TransformerBackbone
from bertwright.model.vector_head import VectorHead
from bertwright.version import __version__

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the inputs, as in transformers; int64 [B, T], or [B, C, T] for choices."""
OPSET = 20
"""Version of ONNX's operators: the first with Gelu; ONNX Runtime reads it since 1.17 (2024)."""
MAX_INTERNAL_BYTES = 1_500_000_000
"""Largest size in bytes of weights inside the .onnx file, whose limit is 2 GiB."""
_DOMAIN, _ATTENTION = "com.microsoft", "Attention"
"""Domain and name of ONNX Runtime's own attention node; the standard operators of ONNX have no such node."""


SENTENCE_VECTORS = "sentence_embedding"
"""Name of the output with the finished vectors of texts, as Optimum and text-embeddings-inference have it."""


class SentenceModel(nn.Module):
    """An encoder with the head that makes one vector of the states of a text."""

    architecture = "BertModel"

    def __init__(self, encoder: TransformerBackbone, head: VectorHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return last_hidden_state [B, T, D] and sentence_embedding [B, W]; the arguments are those of `Bert`."""
        last = self.encoder(ids, segments, mask).last
        return {"last_hidden_state": last, SENTENCE_VECTORS: self.head(last, mask, ids)}


GraphModel = Bert | SentenceModel
"""A model that a graph is written of."""


def outputs_of(model: GraphModel) -> tuple[str, ...]:
    """Return the names of the outputs of a model, in their order."""
    if isinstance(model, SentenceModel):
        return ("last_hidden_state", SENTENCE_VECTORS)
    return model.outputs


@dataclass(frozen=True)
class WrittenGraph:
    """A written graph: the names of its `files`, and its number of attention nodes."""

    files: tuple[str, ...]
    attention_nodes: int


def write_graph(model: GraphModel, path: Path, *, metadata: Mapping[str, str]) -> WrittenGraph:
    """Write `model` as `path`. Weights of more than MAX_INTERNAL_BYTES go into a file beside it."""
    with quiet():
        program = _export(_with_attention_nodes(model))
        graph = program.model.graph
        values = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
        for part in (graph, *graph, *values):  # else the file holds the exporter's notes, with paths of source files
            part.metadata_props.clear()
        program.model.producer_name, program.model.producer_version = "bertwright", __version__
        program.model.metadata_props.update(metadata)
        weight_bytes = sum(weight.nbytes for weight in model.parameters())
        program.save(path, external_data=weight_bytes > MAX_INTERNAL_BYTES)
    files = tuple(sorted(file.name for file in path.parent.glob(f"{path.name}*")))
    return WrittenGraph(files, sum(node.domain == _DOMAIN and node.op_type == _ATTENTION for node in graph))


def _with_attention_nodes(model: GraphModel) -> GraphModel:
    """Return a copy of the model that shares its weights, with each layer's attention as one node of ONNX Runtime.

    That node has no rotary positions. Attention with them is written as torch's exporter has it.
    """
    shared_weights = {id(weight): weight for weight in model.parameters()}
    copied = copy.deepcopy(model, shared_weights)
    for layer in copied.encoder.layers:
        attention = layer.get_submodule("attention")
        if isinstance(attention, SelfAttention):
            layer.register_module("attention", _AttentionNode(attention))
    return copied


class _AttentionNode(nn.Module):
    """Attention of a layer as one ONNX node. It can be exported, but not computed by torch."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.plain = attention  # the name is a part of the weights' names in the graph

    def forward(self, hidden: Tensor, keep: Tensor, rows: None = None, past: None = None) -> Tensor:
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
        output: Tensor = self.plain.output(context)
        return output


class _WithInputsOfTransformers(nn.Module):
    """The model with the inputs of transformers, by their names and in their order."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the architecture, in its order."""
        return tuple(self.model(input_ids, token_type_ids, attention_mask != 0).values())


def _export(model: GraphModel) -> torch.onnx.ONNXProgram:
    """Return the graph that torch's exporter records while the model computes an example; every axis may vary."""
    positions = model.encoder.config.max_positions
    axes = ("batch", "choices", "tokens") if model.architecture == "BertForMultipleChoice" else ("batch", "tokens")
    example_sizes = {"batch": 2, "choices": 3, "tokens": min(8, positions)}
    # A tensor for each input: the exporter would take one tensor, passed three times, for one input.
    example = tuple(torch.ones([example_sizes[axis] for axis in axes], dtype=torch.int64) for _ in INPUTS)
    dims = {
        index: torch.export.Dim(axis, max=positions) if axis == "tokens" else torch.export.Dim(axis)
        for index, axis in enumerate(axes)
    }
    program = torch.onnx.export(
        _WithInputsOfTransformers(model).eval(),
        example,
        dynamo=True,
        opset_version=OPSET,
        dynamic_shapes=(dims, dims, dims),
        input_names=INPUTS,
        output_names=outputs_of(model),
        verbose=False,
    )
    assert program is not None
    return program


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
