"""hidden states → logits: the heads of pre-training and of the tasks (paper §3.1, §4.1).

Shapes: B batch, M masked positions, D hidden, V vocabulary, L labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.config import BackboneConfig, EncoderConfig
from bertwright.model.encoder import dropout


def for_loss(logits: Tensor) -> Tensor:
    """Return logits in the precision of losses: bf16 logits become fp32, those of a float64 model stay float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def in_own_precision(linear: nn.Linear, rows: Tensor) -> Tensor:
    """Return the layer's output in the precision of its weights; a bf16 model keeps its task head in fp32.

    bf16 has about three digits: a regression of years would give a single number, and probabilities near 1 would be
    coarse.
    """
    output: Tensor = linear(rows.to(linear.weight.dtype))
    return output


class MaskedLMHead(nn.Module):
    """Linear layer with GELU, LayerNorm, the transposed word embeddings (tied) and a bias for each vocabulary entry."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def states(self, rows: Tensor) -> Tensor:
        """Return the vectors that are compared with the word embeddings: […, D] → […, D]."""
        out: Tensor = self.norm(F.gelu(self.transform(rows), approximate=self.approximate))
        return out

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:
        """Return logits […, V] for rows […, D] and the word embeddings [V, D]."""
        return F.linear(self.states(rows), words, self.bias)


class TiedOutput(nn.Module):
    """Output layer of GPT-1: the transposed word embeddings alone."""

    bias: Tensor
    """Zeros [V]; model folders do not store them."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(config.vocab_size), persistent=False)

    def states(self, rows: Tensor) -> Tensor:
        """Return the vectors that are compared with the word embeddings: the states themselves."""
        return rows


class BiasedOutput(nn.Module):
    """Output layer of an LSTM: the transposed word embeddings and a bias for each vocabulary entry."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def states(self, rows: Tensor) -> Tensor:
        """Return the vectors that are compared with the word embeddings: the states themselves."""
        return rows


class NextSentenceHead(nn.Module):
    """Pooled vector → two logits. Label 0: B follows A. Label 1: B is random or, for sentence order, precedes A."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return logits [B, 2] for pooled vectors [B, D]."""
        return in_own_precision(self.linear, pooled)


class ClassificationHead(nn.Module):
    """Dropout and a linear layer on pooled or token vectors; regression and multiple choice have a single output."""

    def __init__(self, hidden: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, num_labels)
        self.dropout = dropout

    def forward(self, pooled: Tensor) -> Tensor:
        """Return logits [B, L] for vectors [B, D], or [B, T, L] for [B, T, D]."""
        return in_own_precision(self.linear, dropout(pooled, self.dropout, self.training))


class SpanHead(nn.Module):
    """Start and end vectors S and E of paper §4.2: a linear layer with two outputs on each token's vector."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden, 2)

    def forward(self, last: Tensor) -> Tensor:
        """Return start and end logits [B, T, 2] for token vectors [B, T, D]."""
        return in_own_precision(self.linear, last)
