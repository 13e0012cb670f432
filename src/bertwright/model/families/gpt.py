"""GPT-1 (GPT paper §3.1 and §4.1): BERT's blocks with attention to the left, and its form in transformers.

There are no segments and no LayerNorm on the embeddings. The output layer is the word embeddings, without a bias.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from bertwright.config import PositiveNumber
from bertwright.model.config import EncoderConfig
from bertwright.model.families import ModelDescription
from bertwright.model.families.tables import AnyEncoderConfig, EncoderFamily
from bertwright.model.hf_config import check_values

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.model.encoder import Encoder
    from bertwright.model.heads import TiedOutput

GPT_ARCHITECTURE = "OpenAIGPTLMHeadModel"
GPT_MODEL_TYPE = "openai-gpt"
_LINEAR = ("qkv", "output", "expand", "contract")
"""Last parts of the names of linear layers in the blocks; transformers stores their weights transposed."""
_CONSTANT = re.compile(r"(transformer\.)?(position_ids|h\.\d+\.attn\.(bias|masked_bias))")
"""Names of the causal mask and of position numbers, which older versions of transformers stored with the weights."""


class GPTConfig(EncoderConfig):
    """Configuration of GPT-1: no segments, the tanh form of GELU, another epsilon (GPT paper §4.1)."""

    num_segments: Literal[0] = 0
    activation: Literal["gelu_tanh"] = "gelu_tanh"
    layer_norm_eps: PositiveNumber = 1e-5
    attends: Literal["left"] = "left"

    @property
    def classifier_has_pooler(self) -> bool:
        """Return False (GPT paper §3.2)."""
        return False

    @property
    def is_tuned_as_gpt(self) -> bool:
        """Return True."""
        return True

    @property
    def first_normed_layer(self) -> int:
        """Return 1: the embeddings have no LayerNorm, and that of a layer stands at its end."""
        return 1

    @property
    def output_has_transform(self) -> bool:
        """Return False: the output layer is the word embeddings."""
        return False

    @model_validator(mode="after")
    def _feed_forward_is_four_times_hidden(self) -> Self:
        if self.intermediate != 4 * self.hidden:  # config.json of GPT-1 has no entry for another width
            raise ValueError(f"intermediate {self.intermediate} is not 4 times hidden {self.hidden}")
        return self


@dataclass(frozen=True, kw_only=True)
class LeftwardFamily(EncoderFamily[AnyEncoderConfig]):
    """GPT-1 or GPT-2: the output layer is the word embeddings, and weights of linear layers are stored transposed."""

    def output(self, config: AnyEncoderConfig) -> "TiedOutput":
        """Return the word embeddings as the output layer, without a bias."""
        from bertwright.model.heads import TiedOutput  # torch

        return TiedOutput(config, bias=False)

    def values_from_json(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields; an intermediate width that is not named is four times the width."""
        values = super().values_from_json(raw)
        if values.get("intermediate") is None and "hidden" in values:
            values["intermediate"] = 4 * values["hidden"] if type(values["hidden"]) is int else values["hidden"]
        return values

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of this family; InputError for two dropouts of the states, too."""
        check_values(path, {"embd_pdrop": (raw.get("embd_pdrop", 0.1), raw.get("resid_pdrop", 0.1))})
        return super().config_from_json(raw, path)

    def config_to_json(self, config: AnyEncoderConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return config.json, with the dropout of the embeddings."""
        return super().config_to_json(config, architecture, labels) | {"embd_pdrop": config.hidden_dropout}

    def weights_to_foreign(self, weights: "Mapping[str, Tensor]", architecture: str) -> "dict[str, Tensor]":
        """Return weights under the names of transformers, those of linear layers in the blocks transposed."""
        return super().weights_to_foreign({name: _turned(name, each) for name, each in weights.items()}, architecture)

    def weights_from_foreign(
        self, tensors: "Mapping[str, Tensor]", source: str, *, tied: bool = True, architecture: str | None = None
    ) -> "dict[str, Tensor]":
        """Return tensors of transformers under our names in fp32, [out, in]; see `EncoderFamily`."""
        weights = super().weights_from_foreign(tensors, source, tied=tied, architecture=architecture)
        return {name: _turned(name, tensor) for name, tensor in weights.items()}

    def is_constant(self, name: str) -> bool:
        """Return True for the causal mask and for numbers of positions."""
        return _CONSTANT.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class _GPT(LeftwardFamily[GPTConfig]):
    """GPT-1 with its language model; with a task's head it is stored in bertwright's own form."""

    def build(self, config: GPTConfig) -> "Encoder":
        from bertwright.model.encoder import Encoder, TokensAndPositions  # torch

        return Encoder(config, embeddings=TokensAndPositions)

    def language_architecture(self, config: GPTConfig) -> str:
        return GPT_ARCHITECTURE

    def config_to_json(self, config: GPTConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        described = super().config_to_json(config, architecture, labels)
        return described | {self.activation_name: "gelu"}  # name of the tanh form in this class

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of any class of GPT-1, as a language model; InputError for another model."""
        check_values(path, {self.activation_name: (raw.get(self.activation_name, "gelu"), "gelu")})
        as_usual = {**raw, self.activation_name: "gelu_new", "id2label": {}, "architectures": [GPT_ARCHITECTURE]}
        return replace(super().config_from_json(as_usual, path), raw=raw)


def is_transposed(name: str) -> bool:
    """Return True for our name of a tensor that is stored transposed: the weight of a linear layer in a block."""
    module, _, parameter = name.rpartition(".")
    return ".layers." in module and parameter == "weight" and module.rpartition(".")[2] in _LINEAR


def _turned(name: str, tensor: "Tensor") -> "Tensor":
    """Return a tensor by our name, transposed where it is stored so."""
    return tensor.T if is_transposed(name) else tensor


GPT_FAMILY = _GPT(
    name="gpt",
    config_class=GPTConfig,
    systems={"gpt": "GPT-1"},
    model_types=(GPT_MODEL_TYPE,),
    trains_on_spans=True,
    title_in_messages="GPT-1",
    prefix="transformer",
    classes={GPT_ARCHITECTURE: GPT_ARCHITECTURE},
    modules={
        "encoder.embeddings.word": "transformer.tokens_embed",
        "encoder.embeddings.position": "transformer.positions_embed",
        "encoder.layers.#.attention.qkv": "transformer.h.#.attn.c_attn",
        "encoder.layers.#.attention.output": "transformer.h.#.attn.c_proj",
        "encoder.layers.#.attention_norm": "transformer.h.#.ln_1",
        "encoder.layers.#.expand": "transformer.h.#.mlp.c_fc",
        "encoder.layers.#.contract": "transformer.h.#.mlp.c_proj",
        "encoder.layers.#.output_norm": "transformer.h.#.ln_2",
    },
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    config_names={
        "vocab_size": "vocab_size",
        "hidden": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "max_positions": "n_positions",
        "hidden_dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "layer_norm_epsilon",
        "pad_id": "pad_token_id",
    },
    activation_name="afn",
    fixed={"model_type": GPT_MODEL_TYPE, "tie_word_embeddings": True, "n_special": 0},
)
