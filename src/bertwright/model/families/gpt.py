"""GPT-1 (GPT paper §3.1 and §4.1): BERT's blocks with attention to the left, and its form in transformers.

There are no segments and no LayerNorm on the embeddings. The output layer is the word embeddings, without a bias.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from bertwright.config import PositiveNumber
from bertwright.errors import InputError
from bertwright.model.config import EncoderConfig, SingleBackboneConfig
from bertwright.model.families import ModelDescription, TransformersFamily
from bertwright.model.hf_config import check_values, notes_in, our_values

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.model.encoder import Encoder
    from bertwright.model.heads import TiedOutput

GPT_ARCHITECTURE = "OpenAIGPTLMHeadModel"
GPT_MODEL_TYPE = "openai-gpt"
_CONFIG_NAMES = {
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
}
_WEIGHT_NAMES = {
    "encoder.embeddings.word": "transformer.tokens_embed",
    "encoder.embeddings.position": "transformer.positions_embed",
    "encoder.layers.#.attention.qkv": "transformer.h.#.attn.c_attn",
    "encoder.layers.#.attention.output": "transformer.h.#.attn.c_proj",
    "encoder.layers.#.attention_norm": "transformer.h.#.ln_1",
    "encoder.layers.#.expand": "transformer.h.#.mlp.c_fc",
    "encoder.layers.#.contract": "transformer.h.#.mlp.c_proj",
    "encoder.layers.#.output_norm": "transformer.h.#.ln_2",
}
"""Our module → module of transformers. # is the number of the layer."""
_WORDS, _OUTPUT = "transformer.tokens_embed.weight", "lm_head.weight"
_LINEAR = ("qkv", "output", "expand", "contract")
"""Last parts of the names of linear layers; transformers stores their weights transposed."""
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
    def output_has_transform(self) -> bool:
        """Return False: the output layer is the word embeddings."""
        return False

    @model_validator(mode="after")
    def _feed_forward_is_four_times_hidden(self) -> Self:
        if self.intermediate != 4 * self.hidden:  # config.json of GPT-1 has no entry for another width
            raise ValueError(f"intermediate {self.intermediate} is not 4 times hidden {self.hidden}")
        return self


class _GPT(TransformersFamily[GPTConfig]):
    def build(self, config: GPTConfig) -> "Encoder":
        from bertwright.model.encoder import Encoder, TokensAndPositions  # torch

        return Encoder(config, embeddings=TokensAndPositions)

    def output(self, config: GPTConfig) -> "TiedOutput":
        from bertwright.model.heads import TiedOutput  # torch

        return TiedOutput(config, bias=False)

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> SingleBackboneConfig:
        """Return the GPT-1 of the same size; its activation is fixed."""
        changes = shape.model_dump(exclude_defaults=True)
        return GPTConfig.model_validate({name: value for name, value in changes.items() if name != "activation"})

    def language_architecture(self, config: GPTConfig) -> str:
        return GPT_ARCHITECTURE

    def is_standard(self, config: GPTConfig, architecture: str) -> bool:
        """Return True for a language model; GPT-1 with a task's head is stored in bertwright's own form."""
        return architecture == GPT_ARCHITECTURE

    def config_to_json(self, config: GPTConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        values = config.model_dump()
        return {
            "architectures": [GPT_ARCHITECTURE],
            "model_type": GPT_MODEL_TYPE,
            "afn": "gelu",  # name of the tanh form in this class
            "embd_pdrop": config.hidden_dropout,
            **{stored: values[ours] for ours, stored in _CONFIG_NAMES.items()},
        }

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of transformers' GPT-1; InputError for another model."""
        wanted = {
            "model_type": (raw.get("model_type"), GPT_MODEL_TYPE),
            "afn": (raw.get("afn", "gelu"), "gelu"),
            "tie_word_embeddings": (raw.get("tie_word_embeddings", True), True),
            "n_special": (raw.get("n_special", 0), 0),
            "embd_pdrop": (raw.get("embd_pdrop", 0.1), raw.get("resid_pdrop", 0.1)),
        }
        check_values(path, wanted)
        notes = notes_in(raw, path)
        values = our_values(raw, _CONFIG_NAMES)
        hidden = values.get("hidden")
        values["intermediate"] = 4 * hidden if isinstance(hidden, int) else hidden
        try:
            config = GPTConfig.model_validate(values)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
        return ModelDescription(config, GPT_ARCHITECTURE, (), notes, raw)

    def weights_to_foreign(self, weights: "Mapping[str, Tensor]", architecture: str) -> "dict[str, Tensor]":
        """Return weights under the names of transformers' GPT-1; the tied output layer is not stored."""
        from bertwright.model.hf_weights import rename  # torch

        return {rename(name, _WEIGHT_NAMES): _transposed(name, tensor) for name, tensor in weights.items()}

    def weights_from_foreign(
        self, tensors: "Mapping[str, Tensor]", source: str, *, tied: bool = True, architecture: str | None = None
    ) -> "dict[str, Tensor]":
        """Return tensors of transformers' GPT-1 under our names in fp32.

        The tied table may be stored as the word embeddings, as the output layer, or as both; `config_from_json` refuses
        a model that is not tied. Constants are left out. Raises InputError for tensors that do not belong to a GPT-1,
        and for an output layer that differs from the word embeddings.
        """
        from bertwright.model.hf_weights import our_names, without_tied_output, wrapper_prefix  # torch

        prefix = wrapper_prefix(tensors)
        in_file = {_full_name(name.removeprefix(prefix)): name for name in tensors}
        weights = {name: tensors[stored].float() for name, stored in in_file.items() if not is_constant(name)}
        weights = without_tied_output(weights, _OUTPUT, _WORDS, source=source, in_file=in_file)
        named = our_names(weights, [_WEIGHT_NAMES], kind="GPT-1", source=source, in_file=in_file)
        return {name: _transposed(name, tensor) for name, tensor in named.items()}

    def name_in_file(self, name: str, stored: Collection[str] = (), architecture: str = "") -> str:
        """Return the name in transformers' GPT-1."""
        from bertwright.model.hf_weights import module_of, rename, wrapper_prefix  # torch

        if module_of(name) not in _WEIGHT_NAMES:
            return name
        prefix, renamed = wrapper_prefix(stored), rename(name, _WEIGHT_NAMES)
        if stored and not any(other.startswith(f"{prefix}transformer.") for other in stored):
            renamed = renamed.removeprefix("transformer.")
        return prefix + renamed


def is_constant(name: str) -> bool:
    """Return True for the name of a stored constant, which is no weight."""
    return _CONSTANT.fullmatch(name) is not None


def _full_name(name: str) -> str:
    return f"transformer.{name}" if name.startswith(("tokens_embed.", "positions_embed.", "h.")) else name


def is_transposed(name: str) -> bool:
    """Return whether the tensor of our name is stored transposed: the weight of a linear layer."""
    module, _, parameter = name.rpartition(".")
    return parameter == "weight" and module.rpartition(".")[2] in _LINEAR


def _transposed(name: str, tensor: "Tensor") -> "Tensor":
    """Return a tensor by our name; the weight of a linear layer is transposed."""
    return tensor.T if is_transposed(name) else tensor


GPT_FAMILY = _GPT(
    name="gpt",
    config_class=GPTConfig,
    systems={"gpt": "GPT-1"},
    model_types=(GPT_MODEL_TYPE,),
    trains_on_spans=True,
)
