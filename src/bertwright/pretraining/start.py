"""encoder with random weights → the same encoder with the attention initialisation of the settings."""

import torch

from bertwright.model.attention_init import init_attention
from bertwright.model.backbones import Backbone
from bertwright.model.config import Start
from bertwright.model.encoder import Encoder
from bertwright.model.modern_encoder import ModernEncoder
from bertwright.model.rotary_init import init_rotary_attention
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer


def start_attention(encoder: Backbone, start: Start, *, seed: int, tokenizer: BaseTokenizer) -> None:
    """Initialise the attention of a Transformer with fresh weights (in place).

    Raises InputError where the model has too few layers, or heads that do not suit the initialisation.
    """
    if isinstance(encoder, ModernEncoder):
        assert isinstance(tokenizer, MaskTokenizer)
        marked = (tokenizer.cls_id, tokenizer.sep_id)
        init_rotary_attention(encoder, start, special=tokenizer.special_ids, marked=marked)
    else:
        assert isinstance(encoder, Encoder)
        generator = torch.Generator().manual_seed(seed)
        init_attention(encoder, start, generator=generator, special=tokenizer.special_ids)
