"""Two model folders → one: a left-to-right and a right-to-left language model side by side, as in ELMo (paper §5.1)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.card import pair_card
from bertwright.model.families.elmo import LSTMConfig, PairConfig
from bertwright.model.folder import SavedModel, open_model, save_model, weights_digest
from bertwright.model.system import MASKED_LM_SYSTEMS, NAMES, system_of
from bertwright.tasks.binding import open_tokenizer

_ARCHITECTURE = "BertwrightPair"


def join(left: str, right: str, out: Path) -> dict[str, Any]:
    """Write the model folder `out` of two independently trained models; return {"model", "layers", "hidden"}.

    The heads are left out, since neither predicts from the states of both. Raises InputError where the models are not
    left-to-right and right-to-left, are of two kinds, or differ in tokenizer or shape.
    """
    if out.exists():
        raise InputError(f"{out}: already exists; choose another --out")
    models = open_model(left), open_model(right)
    for saved in models:
        if saved.weights is None:
            raise InputError(f"{saved.source}: expected a pre-trained model, got random weights")
    config = _pair_config(*models)
    hashes = [open_tokenizer(saved).hash for saved in models]
    if hashes[0] != hashes[1]:
        raise InputError(
            f"{models[1].source}: has another tokenizer than {models[0].source}; both models must have the same one"
        )
    digests = [str(weights_digest(saved)) for saved in models]
    save_model(
        out,
        dict(_pair_weights(models)),
        config=config,
        tokenizer=models[0].tokenizer,
        architecture=_ARCHITECTURE,
        card=pair_card(config, architecture=_ARCHITECTURE, digests=digests),
    )
    return {"model": str(out), "layers": config.layers, "hidden": config.hidden}


def _pair_config(left: SavedModel, right: SavedModel) -> PairConfig:
    """Return the configuration of the pair. Raises InputError where the models are no pair."""
    for saved in (left, right):
        system = system_of(saved.config)
        if "task" in saved.extra:
            raise InputError(f"{saved.source}: was fine-tuned; join pre-trained models, and fine-tune the pair")
        if system in (None, "gpt", "gpt2", *MASKED_LM_SYSTEMS):
            kind = NAMES[system] if system else "composition of models"
            raise InputError(f"{saved.source}: is a {kind}; a pair is bert-left and bert-right, or the two LSTMs")
    if isinstance(left.config, LSTMConfig) != isinstance(right.config, LSTMConfig):
        raise InputError(f"{left.source} and {right.source}: an LSTM and a Transformer are no pair")
    try:
        return PairConfig.model_validate({"left": left.config, "right": right.config})
    except ValidationError as error:
        reasons = "; ".join(part["msg"].removeprefix("Value error, ") for part in error.errors())
        raise InputError(f"{left.source} and {right.source}: {reasons}") from None


def _pair_weights(models: tuple[SavedModel, SavedModel]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the pair, weight) of both backbones."""
    for side, saved in zip(("left", "right"), models, strict=True):
        weights: Mapping[str, Tensor] = saved.weights or {}
        for name, tensor in weights.items():
            if name.startswith("encoder."):
                yield f"encoder.{side}.{name.removeprefix('encoder.')}", tensor
