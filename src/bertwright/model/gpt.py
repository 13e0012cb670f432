"""batches → body of GPT-1: BERT's blocks, each token attending to itself and to what stands before it (GPT §3.1, §4.1).

No segments, no LayerNorm on the embeddings, and the token embeddings once more as the output, without a bias.

Shapes: D hidden, V vocabulary.
"""

import torch.nn.functional as F
from torch import Tensor

from bertwright.model.encoder import Encoder, TokensAndPositions
from bertwright.model.sizes import GPTConfig


class GPT(Encoder):
    """Token ids to vectors that know the tokens up to their own, and to the logits of the next token.

    What padding holds after a real token never reaches it.
    """

    config: GPTConfig
    _embeddings = TokensAndPositions

    def logits(self, states: Tensor) -> Tensor:
        """[…, D] states of tokens → […, V] logits of the tokens that follow them."""
        return F.linear(states, self.embeddings.word.weight)
