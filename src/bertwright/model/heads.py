"""hidden states → logits: the heads of pre-training and of the tasks (paper §3.1, §4.1).

Shapes: B batch, M masked positions, D hidden, E width of the embeddings, V vocabulary, L labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.config import BackboneConfig, EncoderConfig
from bertwright.model.encoder import dropout


def for_loss(logits: Tensor) -> Tensor:
    """Return logits in the precision in which losses are computed: bf16 becomes fp32, float64 stays float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class MaskedLMHead(nn.Module):
    """Linear layer with GELU, LayerNorm, the transposed word embeddings and a bias for each vocabulary entry."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden, config.embedding_width)
        self.norm = nn.LayerNorm(config.embedding_width, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.approximate = "tanh" if config.masked_lm_activation == "gelu_tanh" else "none"

    def states(self, rows: Tensor) -> Tensor:
        """Return the transformed rows, which are multiplied with the word embeddings: […, D] → […, E]."""
        out: Tensor = self.norm(F.gelu(self.transform(rows), approximate=self.approximate))
        return out

    def forward(self, rows: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits […, V] for rows […, D] and the word embeddings [V, E]."""
        return F.linear(self.states(rows), embeddings, self.bias)


class TiedOutput(nn.Module):
    """Output layer without a transform: the transposed word embeddings, for an LSTM with a bias for each entry.

    bias: False for GPT-1; its bias is zeros [V], which model folders do not store.
    """

    bias: Tensor

    def __init__(self, config: BackboneConfig, *, bias: bool) -> None:
        super().__init__()
        zeros = torch.zeros(config.vocab_size)
        if bias:
            self.bias = nn.Parameter(zeros)
        else:
            self.register_buffer("bias", zeros, persistent=False)

    def states(self, rows: Tensor) -> Tensor:
        """Return the rows unchanged: the word embeddings are multiplied with the states themselves."""
        return rows


class ClassificationHead(nn.Module):
    """Dropout and a linear layer on pooled or token vectors; regression and multiple choice have a single output.

    The layer is computed in the precision of its weights, which are fp32 in a bf16 model too. bf16 has about three
    digits: a regression of years would give a single number, and probabilities near 1 would be coarse.
    """

    def __init__(self, hidden: int, num_labels: int, dropout: float, *, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, num_labels, bias=bias)
        self.dropout = dropout

    def forward(self, vectors: Tensor) -> Tensor:
        """Return logits [B, L] for vectors [B, D], or [B, T, L] for [B, T, D]."""
        kept = dropout(vectors, self.dropout, self.training)
        logits: Tensor = self.linear(kept.to(self.linear.weight.dtype))
        return logits


class NextSentenceHead(ClassificationHead):
    """Pooled vector → two logits. Label 0: B follows A. Label 1: B is random or, for sentence order, precedes A."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config.hidden, 2, dropout=0.0)


class SpanHead(ClassificationHead):
    """Start and end vectors S and E of paper §4.2: two logits, start and end, for each token's vector."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config.hidden, 2, dropout=0.0)
