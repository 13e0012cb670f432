"""Families of models: what the registry finds, and that another family is one file."""

import subprocess
import sys
from pathlib import Path

from bertwright.model.families import families
from bertwright.model.system import NAMES, SYSTEMS

ANOTHER = """
from typing import Literal
from bertwright.model.config import EncoderConfig
from bertwright.model.families import Family

class SegmentlessConfig(EncoderConfig):
    num_segments: Literal[0] = 0

class _Segmentless(Family[SegmentlessConfig]):
    def build(self, config):
        from bertwright.model.encoder import Encoder, TokensAndPositions
        return Encoder(config, embeddings=TokensAndPositions)

    def from_encoder(self, system, shape, size):
        return SegmentlessConfig.model_validate(shape.model_dump(exclude_defaults=True))

SYSTEMS = {"segmentless": "segmentless BERT"}
SEGMENTLESS = _Segmentless(name="segmentless", config_class=SegmentlessConfig, systems=SYSTEMS)
"""
PROGRAM = """
import sys
from pathlib import Path
import bertwright.model.families
folder, tokenizer = Path(sys.argv[1]), Path(sys.argv[2])
bertwright.model.families.__path__.append(str(folder))
from bertwright.model.system import NAMES, SYSTEMS, system_config, system_of
assert NAMES["segmentless"] == "segmentless BERT" and SYSTEMS[-1] == "segmentless"
assert "torch" not in sys.modules
import torch
from bertwright.model.folder import load_weights, open_model, save_model
from bertwright.objectives.masked_lm import PretrainingModel
config = system_config("segmentless", "tiny", 30, max_positions=16)
model = PretrainingModel(config, second_sentence="none").eval()
assert not [name for name in model.state_dict() if "segment" in name]
save_model(folder / "m", model, config=config, tokenizer=tokenizer, architecture="BertForMaskedLM")
saved = open_model(str(folder / "m"))
assert saved.config == config and system_of(saved.config) == "segmentless"
again = PretrainingModel(saved.config, second_sentence="none").eval()
load_weights(again, saved, fresh=("pooler",))
ids = torch.arange(1, 11)[None]
batch = (ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
assert torch.equal(again.encoder(*batch).last, model.encoder(*batch).last)
assert open_model("random:segmentless:tiny", tokenizer=tokenizer, vocab_size=30).config.num_segments == 0
"""


def test_the_families_and_their_systems() -> None:
    assert list(families()) == ["bert", "gpt", "lstm", "pair", "top"]
    assert SYSTEMS == ("bert", "bert-left", "bert-right", "gpt", "lstm-left", "lstm-right") == tuple(NAMES)


def test_another_family_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "segmentless.py").write_text(ANOTHER)
    (tmp_path / "tokenizer").mkdir()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(tmp_path / "tokenizer")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
