"""hidden states → logits: the heads of pre-training and of the tasks (paper §3.1, §4.1).

Shapes: B batch, M masked positions, D hidden, E width of the embeddings, V vocabulary, L labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.attention import dropout
from bertwright.model.config import BackboneConfig, EncoderConfig
from bertwright.model.encoder import ACTIVATIONS, Pooler


def for_loss(logits: Tensor) -> Tensor:
    """Return logits in the precision in which losses are computed: bf16 becomes fp32, float64 stays float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class MaskedLMHead(nn.Module):
    """Linear layer with an activation, LayerNorm, the transposed word embeddings, a bias for each vocabulary entry."""

    bias: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden, config.embedding_width, bias=config.heads_have_bias)
        self.norm = nn.LayerNorm(config.embedding_width, eps=config.layer_norm_eps, bias=config.norms_have_bias)
        add_output_bias(self, config.vocab_size, learned=config.output_has_bias)
        self.activation = config.masked_lm_activation

    def states(self, rows: Tensor) -> Tensor:
        """Return the transformed rows, which are multiplied with the word embeddings: […, D] → […, E]."""
        out: Tensor = self.norm(ACTIVATIONS[self.activation](self.transform(rows)))
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
        add_output_bias(self, config.vocab_size, learned=bias)

    def states(self, rows: Tensor) -> Tensor:
        """Return the rows unchanged: the word embeddings are multiplied with the states themselves."""
        return rows


def add_output_bias(head: nn.Module, vocab_size: int, *, learned: bool) -> None:
    """Add the bias of each vocabulary entry to a head (in place): a parameter, or zeros that no file holds."""
    zeros = torch.zeros(vocab_size)
    if learned:
        head.register_parameter("bias", nn.Parameter(zeros))
    else:
        head.register_buffer("bias", zeros, persistent=False)


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


class ReplacedTokenHead(nn.Module):
    """ELECTRA's discriminator: linear layer with the activation of the layers, and one logit for each token."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.linear = nn.Linear(config.hidden, 1)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(self, states: Tensor) -> Tensor:
        """Return logits [B, T] for states [B, T, D]; a positive logit says that the token was replaced."""
        logits: Tensor = self.linear(F.gelu(self.dense(states), approximate=self.approximate))
        return logits.squeeze(-1)


class SpanHead(ClassificationHead):
    """Start and end vectors S and E of paper §4.2: two logits, start and end, for each token's vector.

    There is dropout only where a layer of the head precedes them.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config.hidden, 2, dropout=config.head_dropout if config.transforms_tokens else 0.0)


def token_transform(config: BackboneConfig) -> nn.Module:
    """Return the layer between the states of tokens and the head on them; for most families the identity."""
    return Pooler(config) if config.transforms_tokens else nn.Identity()
