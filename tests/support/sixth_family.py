"""A family that the package does not have: ERNIE (Sun et al. 2019), in one file as CONTRIBUTING.md asks for.

A test puts a copy of this file beside the families of the package.
"""

from typing import Literal

from bertwright.model.config import EncoderConfig
from bertwright.model.families.tables import EncoderFamily, encoder_modules


class ErnieConfig(EncoderConfig):
    """Configuration of an ERNIE without embeddings of tasks: a BERT in another name."""

    attends: Literal["both"] = "both"


ERNIE_FAMILY = EncoderFamily(
    name="ernie",
    config_class=ErnieConfig,
    systems={"ernie": "ERNIE"},
    model_types=("ernie",),
    title_in_messages="ERNIE",
    prefix="ernie",
    classes={"BertForMaskedLM": "ErnieForMaskedLM", "BertModel": "ErnieModel"},
    modules={
        **encoder_modules("ernie"),
        "pooler.dense": "ernie.pooler.dense",
        "masked_lm.transform": "cls.predictions.transform.dense",
        "masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "masked_lm": "cls.predictions",
    },
    tied={
        "cls.predictions.decoder.weight": "ernie.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    fixed={"use_task_id": False},
    written=("use_task_id",),
)
