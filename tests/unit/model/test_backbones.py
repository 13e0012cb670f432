"""Whatever turns ids into states is called alike, sees what it may see, and comes back from its folder bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import Backbone, build_backbone, part_prefixes
from bertwright.model.config import BackboneConfig, EncoderConfig, encoder_shape, with_dropout
from bertwright.model.encoder import init_weights
from bertwright.model.families import TransformersFamily, family_of
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import LSTMConfig, PairConfig
from bertwright.model.folder import load_weights, open_model, save_model
from bertwright.model.system import MASKED_LM_SYSTEMS, SYSTEMS, System, system_config
from tests.support.other_weights import put

VOCABULARY, LENGTH = 50, 9
LENGTHS = (9, 6, 2, 1)


def tiny_config(system: System) -> Any:
    shape = system_config(system, "tiny", VOCABULARY, initializer_range=0.3, max_positions=32)
    return shape.model_copy(update={"hidden_dropout": 0.1})


def pair(kind: str) -> PairConfig:
    return PairConfig(left=tiny_config(f"{kind}-left"), right=tiny_config(f"{kind}-right"))  # type: ignore[arg-type]


BACKBONES: dict[str, BackboneConfig] = {
    **{system: tiny_config(system) for system in SYSTEMS},
    "two transformers": pair("bert"),
    "two lstms": pair("lstm"),
    "bilstm on bert": TopConfig(inner=tiny_config("bert"), width=24),
    "bilstm on bert-left": TopConfig(inner=tiny_config("bert-left"), width=24),
    "bilstm on a pair": TopConfig(inner=pair("lstm"), width=24),
}
SEES = {
    "bert": (True, True),
    "bert-left": (True, False),
    "gpt": (True, False),
    "gpt2": (True, False),
    "lstm-left": (True, False),
    "bert-right": (False, True),
    "lstm-right": (False, True),
}
"""For each backbone: its states depend on earlier tokens, and on later ones."""


def random_backbone(config: BackboneConfig) -> Backbone:
    backbone = build_backbone(config)
    init_weights(backbone, 0.3, torch.Generator().manual_seed(1))
    return backbone.eval()


def ragged_batch() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.randint(1, VOCABULARY, (len(LENGTHS), LENGTH), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
    return ids * mask, torch.zeros_like(ids), mask


def assert_close_in_fp32(mine: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", BACKBONES)
def test_dropout_is_set_in_every_part(name: str) -> None:
    config = with_dropout(BACKBONES[name], 0.0)
    assert config.model_copy(update={}) == config != BACKBONES[name]
    backbone = random_backbone(config).train()
    with torch.no_grad():
        first, second = (backbone(*ragged_batch()).last for _ in range(2))
    assert torch.equal(first, second)
    assert with_dropout(config, 0.1).hidden_dropout == 0.1


@pytest.mark.parametrize("name", BACKBONES)
def test_selected_positions_equal_those_of_the_whole(name: str) -> None:
    backbone = random_backbone(BACKBONES[name])
    ids, segments, mask = ragged_batch()
    at = torch.tensor([[8, 0, 3], [5, 1, 1], [0, 1, 0], [0, 0, 0]])
    with torch.inference_mode():
        whole = backbone(ids, segments, mask).last
        selected = backbone(ids, segments, mask, at=at).last
    assert whole.shape == (len(LENGTHS), LENGTH, backbone.config.hidden)
    assert_close_in_fp32(selected, whole.gather(1, at[:, :, None].expand(-1, -1, whole.shape[-1])))


@pytest.mark.parametrize("name", BACKBONES)
def test_padding_changes_nothing(name: str) -> None:
    backbone = random_backbone(BACKBONES[name])
    ids, segments, mask = ragged_batch()
    other = ids.masked_fill(~mask, 7)
    with torch.inference_mode():
        first, second = (backbone(rows, segments, mask).last for rows in (ids, other))
        summary = backbone.summary(ids, segments, mask)
        for row, length in enumerate(LENGTHS):
            alone = [part[row : row + 1, :length] for part in (ids, segments, mask)]
            assert_close_in_fp32(first[row, :length], second[row, :length])
            assert_close_in_fp32(first[row, :length], backbone(*alone).last[0])
            assert_close_in_fp32(summary[row], backbone.summary(*alone)[0])
    assert bool(first.isfinite().all())


@pytest.mark.parametrize("name", SEES)
def test_a_state_depends_on_the_tokens_it_may_and_no_others(name: str) -> None:
    """Perturb one token: the states before it change where attention goes both ways or right, and so on."""
    backbone = random_backbone(BACKBONES[name])
    ids, segments, mask = (part[:1] for part in ragged_batch())
    other = ids.clone()
    other[0, 4] = ids[0, 4] % (VOCABULARY - 1) + 1
    with torch.inference_mode():
        states = [backbone(rows, segments, mask, all_hidden=True).hidden for rows in (ids, other)]
        changed = (states[0][-1] - states[1][-1]).abs().amax(-1)[0] > 1e-6
    behind, before = SEES[name]
    assert changed[5:].all() == behind
    assert changed[5:].any() == behind
    assert changed[:4].all() == before
    assert changed[:4].any() == before
    assert changed[4]


@pytest.mark.parametrize("name", BACKBONES)
def test_the_summary_depends_on_every_token(name: str) -> None:
    backbone = random_backbone(BACKBONES[name])
    ids, segments, mask = (part[:1] for part in ragged_batch())
    with torch.inference_mode():
        before = backbone.summary(ids, segments, mask)
        for position in range(LENGTH):
            other = ids.clone()
            other[0, position] = ids[0, position] % (VOCABULARY - 1) + 1
            assert float((backbone.summary(other, segments, mask) - before).abs().max()) > 1e-6, position


@pytest.mark.parametrize("name", [name for name in BACKBONES if not name.startswith("bilstm")])
def test_all_states_are_given_and_the_last_is_the_last(name: str) -> None:
    config = BACKBONES[name]
    backbone = random_backbone(config)
    with torch.inference_mode():
        states = backbone(*ragged_batch(), all_hidden=True)
    assert len(states.hidden) == config.layers + 1
    assert all(state.shape == states.last.shape for state in states.hidden)
    assert torch.equal(states.hidden[-1], states.last)


def test_a_pair_is_its_halves_and_a_right_lstm_a_left_one_of_reversed_rows() -> None:
    both = random_backbone(pair("lstm"))
    ids, segments, mask = ragged_batch()
    with torch.inference_mode():
        joined = both(ids, segments, mask).last
        halves = [both.get_submodule(side)(ids, segments, mask).last for side in ("left", "right")]
        assert torch.equal(joined, torch.cat(halves, -1))
        left = random_backbone(tiny_config("lstm-left"))
        right = build_backbone(tiny_config("lstm-right")).eval()
        right.load_state_dict(left.state_dict())
        turned = [part[:1].flip(1) for part in (ids, segments, mask)]
        assert_close_in_fp32(right(ids[:1], segments[:1], mask[:1]).last, left(*turned).last.flip(1))


def test_what_lies_on_top_has_no_features() -> None:
    with pytest.raises(InputError, match="frozen features need a backbone without it"):
        random_backbone(BACKBONES["bilstm on bert"])(*ragged_batch(), all_hidden=True)


class Headed(nn.Module):
    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
        self.classifier = nn.ModuleDict({"linear": nn.Linear(config.hidden, 3)})


@pytest.mark.parametrize("name", BACKBONES)
def test_folders_come_back_bit_by_bit(name: str, tmp_path: Path) -> None:
    config = BACKBONES[name]
    model = Headed(config)
    labels = ("no", "yes", "perhaps")
    where: Any = {"config": config, "tokenizer": tmp_path, "labels": labels, "extra": {"note": 1}}
    save_model(tmp_path / "m", model, architecture="BertForSequenceClassification", **where)
    described = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
    family = family_of(config)
    is_standard = isinstance(family, TransformersFamily) and family.is_standard(config, "BertForSequenceClassification")
    assert described["model_type"].startswith("bertwright-") == (not is_standard)
    saved = open_model(str(tmp_path / "m"))
    assert (saved.config, saved.labels, saved.extra) == (config, labels, {"note": 1})
    again = Headed(saved.config)
    load_weights(again, saved)
    for one_of, other in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert one_of[0] == other[0]
        assert torch.equal(one_of[1], other[1])


def test_no_class_of_transformers_opens_what_it_cannot_compute(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    config = tiny_config("bert-left")
    save_model(tmp_path / "m", Headed(config), config=config, tokenizer=tmp_path, architecture="BertModel")
    with pytest.raises((ValueError, KeyError), match="bertwright-bert"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")


def test_random_weights_of_every_system() -> None:
    for system in SYSTEMS:
        saved = open_model(f"random:{system}:mini", tokenizer=Path("tok"), vocab_size=99)
        assert (saved.config.vocab_size, saved.config.hidden, saved.config.layers) == (99, 256, 4)
        side = "both" if system in MASKED_LM_SYSTEMS else system.partition("-")[2] or "left"
        assert saved.config.attends == side  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"there is no system 'elmo'; there are .*bert, .* lstm-right"):
        open_model("random:elmo:tiny", tokenizer=Path("tok"), vocab_size=99)


def test_the_prefixes_of_the_parts_of_a_backbone() -> None:
    assert part_prefixes(BACKBONES["gpt"]) == ("",)
    assert part_prefixes(BACKBONES["bilstm on a pair"]) == ("inner.left.", "inner.right.")
    names = [name for name, _ in build_backbone(BACKBONES["bilstm on a pair"]).named_parameters()]
    for part in part_prefixes(BACKBONES["bilstm on a pair"]):
        assert f"{part}embeddings.word.weight" in names
        assert any(name.startswith(f"{part}layers.1.") for name in names)


def test_pairs_that_are_none() -> None:
    with pytest.raises(ValueError, match="attend to the left and to the right, got left and left"):
        PairConfig(left=tiny_config("lstm-left"), right=tiny_config("lstm-left"))
    wider: Any = system_config("lstm-right", "tiny", VOCABULARY + 1)
    with pytest.raises(ValueError, match="vocab_size is 50 in one of the two models and 51 in the other"):
        PairConfig(left=tiny_config("lstm-left"), right=wider)
    with pytest.raises(ValueError, match="hidden 8 is not below cells 8"):
        LSTMConfig(vocab_size=9, hidden=8, layers=1, cells=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "bertwright-elmo"},
            "expected one of .*bert, .*gpt, .*top with its configuration as body",
        ),
        ({"body": 7}, "expected an object with the configuration of lstm as body, got .7."),
        ({"body": {"hidden": 8}}, "(?s)body of kind lstm: .*vocab_size"),
        ({"architectures": []}, "expected a list with a class name in architectures"),
        ({"bertwright": []}, "must be an object"),
    ],
)
def test_a_folder_of_our_own_form_that_is_broken(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = tiny_config("lstm-left")
    save_model(tmp_path / "m", Headed(config), config=config, tokenizer=tmp_path, architecture="BertModel")
    described = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
    (tmp_path / "m" / "config.json").write_text(json.dumps(described | change), "utf-8")
    with pytest.raises(InputError, match=message):
        open_model(str(tmp_path / "m"))


def test_weights_that_do_not_fit_their_description(tmp_path: Path) -> None:
    config = tiny_config("lstm-left")
    save_model(tmp_path / "m", Headed(config), config=config, tokenizer=tmp_path, architecture="BertModel")
    state = Headed(config).state_dict()
    put(tmp_path / "m", {name: part for name, part in state.items() if "layers.1" not in name})
    with pytest.raises(InputError, match=r"the model has no weights for encoder\.layers\.1\.lstm\.weight_ih_l0"):
        open_model(str(tmp_path / "m"))
    put(tmp_path / "m", state | {"encoder.embeddings.word.weight": torch.zeros(3, 3)})
    with pytest.raises(InputError, match=r"encoder\.embeddings\.word\.weight has shape \(3, 3\), expected \(50, 128\)"):
        open_model(str(tmp_path / "m"))
    put(tmp_path / "m", {name: part.int() for name, part in state.items()})
    with pytest.raises(InputError, match=r"weights are floating-point numbers"):
        open_model(str(tmp_path / "m"))


def test_only_a_bert_is_a_bert() -> None:
    assert encoder_shape(tiny_config("bert"), "m") == tiny_config("bert")
    for name in ("bert-left", "gpt", "lstm-left", "two lstms"):
        with pytest.raises(InputError, match="m: expected an encoder whose tokens attend to both sides"):
            encoder_shape(BACKBONES[name], "m")


def test_a_left_to_right_language_model_is_transformers_decoder(tmp_path: Path) -> None:
    """Written as BertLMHeadModel with is_decoder, which computes the same states; read back as ours."""
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    shape = EncoderConfig(
        vocab_size=50, hidden=32, layers=3, heads=2, intermediate=64, max_positions=20, attends="left"
    )
    model = nn.ModuleDict({"encoder": build_backbone(shape)})
    init_weights(model, 0.3, torch.Generator().manual_seed(4))
    save_model(tmp_path / "m", model, config=shape, tokenizer=tmp_path, architecture="BertLMHeadModel")
    theirs = transformers.BertModel.from_pretrained(tmp_path / "m", add_pooling_layer=False).eval()
    assert theirs.config.is_decoder
    ids, segments, mask = ragged_batch()
    with torch.inference_mode():
        mine = model["encoder"].eval()(ids, segments, mask).last
        other = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask.long()).last_hidden_state
    assert_close_in_fp32(mine[mask], other[mask])
    assert open_model(str(tmp_path / "m")).config == shape


def test_a_bilstm_on_top_changes_neither_segments_nor_compiled_steps() -> None:
    on_roberta, on_modern = (TopConfig(inner=tiny_config(system), width=24) for system in ("roberta", "modernbert"))
    assert not on_roberta.needs_segments  # two tokens part two texts
    assert on_modern.has_compiled_steps
    on_bert = TopConfig(inner=tiny_config("bert"), width=24)
    assert on_bert.needs_segments
    assert not on_bert.has_compiled_steps
