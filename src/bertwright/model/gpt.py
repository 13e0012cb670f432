"""batches → body of GPT-1: BERT's blocks, each token attending to itself and to what stands before it (GPT §3.1, §4.1).

No segments, no LayerNorm on the embeddings, and the token embeddings once more as the output, without a bias.

Shapes: B batch, T tokens, D hidden, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.model.dropout import dropout
from bertwright.model.encoder import EncoderLayer, EncoderOutput, first_positions
from bertwright.model.sizes import GPTConfig


class GPT(nn.Module):
    """Token ids to vectors that know the tokens up to their own, and to the logits of the next token."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.hidden)
        self.position = nn.Embedding(config.max_positions, config.hidden)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))

    def forward(self, ids: Tensor, mask: Tensor, *, all_hidden: bool = False) -> EncoderOutput:
        """Encode `ids` [B, T] with `mask` [B, T] (True for real tokens): `last` [B, T, D].

        With `all_hidden` the embeddings and each layer's output come along. What padding holds after a real token never
        reaches it. ValueError for more tokens than positions.
        """
        length = ids.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        keep = before & mask[:, None, None, :]  # [B, 1, T, T]
        summed = self.word(ids) + first_positions(self.position, length)
        states = [dropout(summed, self.config.hidden_dropout, self.training)]
        for layer in self.layers:
            states.append(layer(states[-1], keep))
        return EncoderOutput(states[-1], tuple(states) if all_hidden else ())

    def logits(self, states: Tensor) -> Tensor:
        """[…, D] states of tokens → […, V] logits of the tokens that follow them."""
        return F.linear(states, self.word.weight)
