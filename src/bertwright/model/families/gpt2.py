"""GPT-2 (Radford et al. 2019, §2.3): GPT-1 with LayerNorm before each sublayer and after the last, in transformers.

There are no segments. The output layer is the word embeddings, without a bias. A classifier of rows is a linear layer
without a bias on the state of the last token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from bertwright.config import Count, PositiveNumber
from bertwright.errors import InputError
from bertwright.model.config import EncoderConfig, SingleBackboneConfig, Size
from bertwright.model.families import ModelDescription
from bertwright.model.families.gpt import LeftwardFamily
from bertwright.model.families.tables import named_class

if TYPE_CHECKING:
    from bertwright.model.encoder import Encoder

GPT2_ARCHITECTURE = "GPT2LMHeadModel"


class GPT2Config(EncoderConfig):
    """Configuration of GPT-2.

    end_id: piece that ends a text; None where config.json names none, or one that the vocabulary does not have.
    """

    num_segments: Literal[0] = 0
    max_positions: Size = 1024
    activation: Literal["gelu", "gelu_tanh"] = "gelu_tanh"
    layer_norm_eps: PositiveNumber = 1e-5
    attends: Literal["left"] = "left"
    end_id: Count | None = None

    @property
    def has_pooler(self) -> bool:
        """Return False."""
        return False

    @property
    def classifier_has_pooler(self) -> bool:
        """Return False: the outputs read the state itself."""
        return False

    @property
    def classifier_has_bias(self) -> bool:
        """Return False."""
        return False

    @property
    def rows_may_be_bare(self) -> bool:
        """Return True: classifiers read the last token, and the published tokenizer adds none."""
        return True

    @property
    def output_has_transform(self) -> bool:
        """Return False: the output layer is the word embeddings."""
        return False

    @model_validator(mode="after")
    def _end_is_a_piece(self) -> Self:
        if self.end_id is not None and self.end_id >= self.vocab_size:
            raise ValueError(f"end_id {self.end_id} is not below the vocab_size {self.vocab_size}")
        return self


@dataclass(frozen=True, kw_only=True)
class _GPT2(LeftwardFamily[GPT2Config]):
    """Blocks with LayerNorm before each sublayer."""

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> SingleBackboneConfig:
        """Return the decoder of the same size.

        It has the activation of `shape` where that is set, also exact GELU, the default of `EncoderConfig`.
        """
        config = super().from_encoder(system, shape, size)
        return config.model_copy(update=shape.model_dump(include={"activation"}, exclude_unset=True))

    def build(self, config: GPT2Config) -> "Encoder":
        from bertwright.model.encoder import Encoder, PreNormLayer, TokensAndPositions  # torch

        return Encoder(config, embeddings=TokensAndPositions, layer=PreNormLayer, final_norm=True)

    def language_architecture(self, config: GPT2Config) -> str:
        return GPT2_ARCHITECTURE

    def values_to_json(self, config: GPT2Config) -> dict[str, Any]:
        values = config.model_dump()
        if config.intermediate == 4 * config.hidden:
            values["intermediate"] = None  # the default of this class
        return values

    def config_to_json(self, config: GPT2Config, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        described = super().config_to_json(config, architecture, labels)
        return described | {"bos_token_id": config.end_id}

    def values_from_json(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields; the padding, which GPT-2 does not have, is the end of a text where none is named."""
        values = super().values_from_json(raw)
        pieces, end = values.get("vocab_size"), values.get("end_id")
        if type(end) is int and type(pieces) is int and end >= pieces:
            values["end_id"] = end = None  # transformers writes 50256 for every vocabulary
        if type(end) is int:
            values.setdefault("pad_id", end)
        return values

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of this family; InputError for another class than those in `classes`."""
        named = named_class(raw, path)
        if named is not None and named not in self.classes.values():
            raise InputError(
                f"{path}: expected one of {', '.join(self.classes.values())} in architectures, got {named}; import a "
                f"{GPT2_ARCHITECTURE} and fine-tune it for the task"
            )
        defaults = {"activation_function": "gelu_new", "architectures": [GPT2_ARCHITECTURE], "vocab_size": 50257}
        described = super().config_from_json({**defaults, **raw}, path)
        return ModelDescription(described.config, described.architecture, described.labels, described.extra, raw)


GPT2_FAMILY = _GPT2(
    name="gpt2",
    config_class=GPT2Config,
    systems={"gpt2": "GPT-2"},
    model_types=("gpt2",),
    title_in_messages="GPT-2",
    prefix="transformer",
    classes={
        GPT2_ARCHITECTURE: GPT2_ARCHITECTURE,
        "BertModel": "GPT2Model",
        "BertForSequenceClassification": "GPT2ForSequenceClassification",
        "BertForTokenClassification": "GPT2ForTokenClassification",
    },
    modules={
        "encoder.embeddings.word": "transformer.wte",
        "encoder.embeddings.position": "transformer.wpe",
        "encoder.layers.#.attention_norm": "transformer.h.#.ln_1",
        "encoder.layers.#.attention.qkv": "transformer.h.#.attn.c_attn",
        "encoder.layers.#.attention.output": "transformer.h.#.attn.c_proj",
        "encoder.layers.#.output_norm": "transformer.h.#.ln_2",
        "encoder.layers.#.expand": "transformer.h.#.mlp.c_fc",
        "encoder.layers.#.contract": "transformer.h.#.mlp.c_proj",
        "encoder.final_norm": "transformer.ln_f",
        "classifier.linear": "classifier",
    },
    class_modules={"BertForSequenceClassification": {"classifier.linear": "score"}},
    tied={"lm_head.weight": "transformer.wte.weight"},
    config_names={
        "vocab_size": "vocab_size",
        "hidden": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "intermediate": "n_inner",
        "max_positions": "n_positions",
        "hidden_dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "layer_norm_epsilon",
        "pad_id": "pad_token_id",
        "end_id": "eos_token_id",
    },
    activation_name="activation_function",
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    published_tokenizers=True,
    trains_on_spans=True,
)
