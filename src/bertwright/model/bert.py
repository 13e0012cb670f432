"""encoder + head → named outputs: the same outputs as the class of transformers that a model folder names.

The model computes all outputs at all positions. The faster paths are tested against it, and the ONNX export uses it.

Shapes: B batch, T tokens, D hidden, V vocabulary, L labels, C choices.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.config import EncoderConfig, encoder_shape
from bertwright.model.encoder import Pooler, TransformerBackbone
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import ClassificationHead, MaskedLMHead, NextSentenceHead, ReplacedTokenHead, SpanHead

Head = Literal["pooler", "masked_lm", "next_sentence", "classifier", "span", "replaced_token"]


@dataclass(frozen=True)
class Architecture:
    """Heads of an architecture, and the names of its outputs."""

    heads: tuple[Head, ...]
    outputs: tuple[str, ...]


ARCHITECTURES = {
    "BertModel": Architecture(("pooler",), ("last_hidden_state", "pooler_output")),
    "BertForPreTraining": Architecture(
        ("pooler", "masked_lm", "next_sentence"), ("prediction_logits", "seq_relationship_logits")
    ),
    "BertForMaskedLM": Architecture(("masked_lm",), ("logits",)),
    "BertForNextSentencePrediction": Architecture(("pooler", "next_sentence"), ("logits",)),
    "BertForSequenceClassification": Architecture(("pooler", "classifier"), ("logits",)),
    "BertForMultipleChoice": Architecture(("pooler", "classifier"), ("logits",)),
    "BertForTokenClassification": Architecture(("classifier",), ("logits",)),
    "BertForQuestionAnswering": Architecture(("span",), ("start_logits", "end_logits")),
    "ElectraForPreTraining": Architecture(("replaced_token",), ("logits",)),
}
"""Architectures by the name of the class of transformers, which config.json holds under `architectures`.

A family has the classes of BERT under names of its own; a set of heads that BERT lacks has the name of its family.
"""


class Bert(nn.Module):
    """An encoder of any family with heads; its parameters have the names that `load_weights` expects."""

    def __init__(self, config: EncoderConfig, architecture: str, *, num_labels: int = 2) -> None:
        """Build the model; raise InputError for an architecture that is not in ARCHITECTURES."""
        super().__init__()
        self.architecture = architecture
        encoder = build_backbone(config)
        assert isinstance(encoder, TransformerBackbone)
        self.encoder = encoder
        heads = architecture_of(architecture).heads
        reads_tokens = bool({"classifier", "span"} & {*heads}) and config.transforms_tokens
        pools = "pooler" in heads and (config.classifier_has_pooler if "classifier" in heads else config.has_pooler)
        if reads_tokens or pools:
            self.pooler = Pooler(config)
        if "masked_lm" in heads:
            self.masked_lm = MaskedLMHead(config)
        if "next_sentence" in heads:
            self.next_sentence = NextSentenceHead(config)
        if "classifier" in heads:
            outputs = 1 if architecture == "BertForMultipleChoice" else num_labels
            bias = config.classifier_has_bias or "pooler" not in heads
            self.classifier = ClassificationHead(config.hidden, outputs, config.head_dropout, bias=bias)
        if "span" in heads:
            self.span = SpanHead(config)
        if "replaced_token" in heads:
            self.replaced_token = ReplacedTokenHead(config)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return outputs by name for `ids`, `segments` and `mask` (True for real tokens) [B, T]; [B, C, T] for choices.

        last_hidden_state [B, T, D], pooler_output [B, D], masked LM [B, T, V], next sentence [B, 2], sequence labels
        [B, L], token labels [B, T, L], choices [B, C], start and end [B, T], replaced tokens [B, T].
        """
        choices = ids.shape[1]
        if self.architecture == "BertForMultipleChoice":
            ids, segments, mask = (part.flatten(0, 1) for part in (ids, segments, mask))  # [B·C, T]
        last = self.encoder(ids, segments, mask).last
        outputs = self._outputs(last, mask)
        if self.architecture == "BertForMultipleChoice":
            outputs = (outputs[0].view(-1, choices),)  # [B·C, 1] → [B, C]
        return dict(zip(self.outputs, outputs, strict=True))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the outputs; without a pooler, the states are the only one."""
        names = ARCHITECTURES[self.architecture].outputs
        return names if self.architecture != "BertModel" or hasattr(self, "pooler") else names[:1]

    def _outputs(self, last: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        tokens = self.pooler(last) if self.encoder.config.transforms_tokens and hasattr(self, "pooler") else last
        embeddings = self.encoder.embeddings.word.weight  # [V, D]
        match self.architecture:
            case "BertModel":
                return (last, self.pooler(last[:, 0])) if hasattr(self, "pooler") else (last,)
            case "BertForPreTraining":
                return self.masked_lm(last, embeddings), self.next_sentence(self.pooler(last[:, 0]))
            case "BertForMaskedLM":
                if self.encoder.config.predicts_ahead:  # the logits at a position are those of the piece there
                    last = torch.cat((last[:, :1], last[:, :-1]), dim=1)
                return (self.masked_lm(last, embeddings),)
            case "BertForNextSentencePrediction":
                return (self.next_sentence(self.pooler(last[:, 0])),)
            case "BertForQuestionAnswering":
                start, end = self.span(tokens).unbind(-1)
                return start, end
            case "BertForTokenClassification":
                return (self.classifier(tokens),)
            case "ElectraForPreTraining":
                return (self.replaced_token(last),)
            case _:
                return (self.classifier(self.pooler(self.encoder.pooled(last, mask))),)


def architecture_of(name: str) -> Architecture:
    """Return the architecture called `name`; InputError where it is not in ARCHITECTURES."""
    if name not in ARCHITECTURES:
        raise InputError(f"architecture {name!r} is not known; allowed are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def open_architecture(saved: SavedModel) -> Bert:
    """Return the model of a folder with the heads that its config.json names, in evaluation mode."""
    config = encoder_shape(saved.config, saved.source)
    num_labels = len(saved.labels) or 2
    if saved.weights and "classifier.linear.weight" in saved.weights:
        num_labels = len(saved.weights["classifier.linear.weight"])
    model = Bert(config, saved.architecture, num_labels=num_labels)
    lacks_pooler = saved.architecture == "BertModel" and "pooler.dense.weight" not in (saved.weights or {})
    if lacks_pooler and hasattr(model, "pooler"):
        del model.pooler  # an encoder of vectors may have none
    load_weights(model, saved)
    return model.eval()
