"""encoder → heads: what turns contextual vectors into logits (paper §3.1, §4.1).

Shapes: B batch, M masked positions, D hidden, V vocabulary, L labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.config import BackboneConfig, EncoderConfig
from bertwright.model.encoder import dropout


def for_loss(logits: Tensor) -> Tensor:
    """Logits in the precision that losses are computed in: bf16 ones in fp32, those of a float64 model as they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def in_own_precision(linear: nn.Linear, rows: Tensor) -> Tensor:
    """The layer in the precision of its weights: a model that answers in bf16 keeps those of its task's head in fp32.

    Of three digits, as bf16 has, a regression of years would be one number, and probabilities near 1 would be steps.
    """
    found: Tensor = linear(rows.to(linear.weight.dtype))
    return found


class MaskedLMHead(nn.Module):
    """Dense with GELU, LayerNorm, then the transposed word embeddings (tied) and one bias per vocabulary entry."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def states(self, rows: Tensor) -> Tensor:
        """[…, D] → […, D]: the vectors that are compared with the word embeddings."""
        out: Tensor = self.norm(F.gelu(self.transform(rows), approximate=self.approximate))
        return out

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:
        """[…, D] rows and the word embeddings [V, D] → logits […, V]."""
        return F.linear(self.states(rows), words, self.bias)


class TiedOutput(nn.Module):
    """The transposed word embeddings and nothing else: GPT-1's output."""

    bias: Tensor
    """Zeros, which no folder holds."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(config.vocab_size), persistent=False)

    def states(self, rows: Tensor) -> Tensor:
        """As MaskedLMHead's: the vectors that are compared with the word embeddings are the states themselves."""
        return rows


class BiasedOutput(nn.Module):
    """The transposed word embeddings and one bias per vocabulary entry: an LSTM's output."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def states(self, rows: Tensor) -> Tensor:
        """As TiedOutput's."""
        return rows


class NextSentenceHead(nn.Module):
    """Pooled vector → two logits; label 0 is IsNext, 1 a random sentence or, for sentence order, swapped ones."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """[B, D] → [B, 2]."""
        return in_own_precision(self.linear, pooled)


class ClassificationHead(nn.Module):
    """Dropout and one linear layer: on the pooled vector or on each token's; one output is a regression or a choice."""

    def __init__(self, hidden: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, num_labels)
        self.dropout = dropout

    def forward(self, pooled: Tensor) -> Tensor:
        """[B, D] → [B, L], or [B, T, D] → [B, T, L]."""
        return in_own_precision(self.linear, dropout(pooled, self.dropout, self.training))


class SpanHead(nn.Module):
    """The start and end vectors S and E of paper §4.2: one linear layer with two outputs on each token's vector."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden, 2)

    def forward(self, last: Tensor) -> Tensor:
        """[B, T, D] → [B, T, 2]: start, end."""
        return in_own_precision(self.linear, last)
