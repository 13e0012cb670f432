"""Variables of the checkpoints in tests/fixtures/google: names, shapes and values, by formula, without TensorFlow."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt

PIECES = """
[PAD] [unused1] [UNK] [CLS] [SEP] [MASK] , . a b e k l n o r s t u ##a ##d ##e ##g ##k ##l ##n ##o ##r ##s ##t ##u
the and of to in one wind boat tide bread salt water stone road bell mill rope lamp slow old north turn ##ing ##ed ##er
##est under before winter
""".split()
CONFIG: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": len(PIECES),
}
LABELS = 3
STEP = 7
HEADS: dict[str, dict[str, tuple[int, ...]]] = {
    "pretrained": {
        "cls/predictions/output_bias": (len(PIECES),),
        "cls/predictions/transform/LayerNorm/beta": (16,),
        "cls/predictions/transform/LayerNorm/gamma": (16,),
        "cls/predictions/transform/dense/bias": (16,),
        "cls/predictions/transform/dense/kernel": (16, 16),
        "cls/seq_relationship/output_bias": (2,),
        "cls/seq_relationship/output_weights": (2, 16),
    },
    "classifier": {"output_bias": (LABELS,), "output_weights": (LABELS, 16)},
    "squad": {"cls/squad/output_bias": (2,), "cls/squad/output_weights": (2, 16)},
}
"""By the folder of the checkpoint."""
KINDS = ("float32", "float16", "bfloat16", "float64", "int32", "int64")
"""The types that a bundle is read in; `kinds/…` holds 3 × 5 numbers of each."""


def encoder() -> dict[str, tuple[int, ...]]:
    """The encoder and its pooler, as Google's code names them."""
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (CONFIG["vocab_size"], width),
        "bert/embeddings/position_embeddings": (CONFIG["max_position_embeddings"], width),
        "bert/embeddings/token_type_embeddings": (CONFIG["type_vocab_size"], width),
        **norm("bert/embeddings"),
        **dense("bert/pooler/dense", width, width),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"bert/encoder/layer_{layer}"
        for part in ("query", "key", "value"):
            shapes |= dense(f"{prefix}/attention/self/{part}", width, width)
        shapes |= dense(f"{prefix}/attention/output/dense", width, width) | norm(f"{prefix}/attention/output")
        shapes |= dense(f"{prefix}/intermediate/dense", width, inner)
        shapes |= dense(f"{prefix}/output/dense", inner, width) | norm(f"{prefix}/output")
    return shapes


def dense(module: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{module}/kernel": (inputs, outputs), f"{module}/bias": (outputs,)}


def norm(module: str) -> dict[str, tuple[int, ...]]:
    width = CONFIG["hidden_size"]
    return {f"{module}/LayerNorm/gamma": (width,), f"{module}/LayerNorm/beta": (width,)}


def variables(checkpoint: str) -> dict[str, tuple[int, ...]]:
    """Everything that a checkpoint holds in float32, an optimiser's moments included.

    run_squad.py saves the pooler, but does not train it: it has no moments there.
    """
    weights = encoder() | HEADS[checkpoint]
    trained = {name: shape for name, shape in weights.items() if not (checkpoint == "squad" and "pooler" in name)}
    slots = {f"{name}/{slot}": shape for name, shape in trained.items() for slot in ("adam_m", "adam_v")}
    return weights if checkpoint == "pretrained" else weights | slots


def values(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Numbers in (-0.6, 0.6), around 1 for the scale of a LayerNorm, from a hash of the name: all exact in float32."""
    raw = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * math.prod(shape)), "<u4") >> 16
    around = 1.0 if name.endswith("gamma") else 0.0
    return (around + (raw.astype(np.float32) - 32768) * np.float32(1.171875 / 65536)).astype(np.float32).reshape(shape)


def whole_numbers(name: str, count: int) -> npt.NDArray[np.int64]:
    """Numbers of -128 … 127 from a hash of the name, exact in every type of KINDS."""
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(count), np.int8).astype(np.int64)


def batch() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Ids, segments and mask [3, 11]: a pair, a padded pair, one padded text."""
    ids = 6 + np.frombuffer(hashlib.shake_256(b"batch").digest(33), np.uint8).reshape(3, 11) % (len(PIECES) - 6)
    ids, lengths, seconds = ids.astype(np.int32), np.array([11, 8, 5]), np.array([6, 4, 11])
    places = np.arange(11)
    mask = (places < lengths[:, None]).astype(np.int32)
    ids[:, 0] = PIECES.index("[CLS]")
    ids[np.arange(3), lengths - 1] = PIECES.index("[SEP]")
    ids[[0, 1], seconds[:2] - 1] = PIECES.index("[SEP]")
    ids[0, 3] = PIECES.index("[MASK]")
    segments = ((places >= seconds[:, None]) & (mask == 1)).astype(np.int32)
    return ids * mask, segments, mask


def config_text() -> str:
    return json.dumps(CONFIG, indent=2) + "\n"
