"""The encoder: published parameter counts, visible tokens, selected positions, names on disk."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertwright.errors import InputError
from bertwright.model.attention import dropout
from bertwright.model.config import SIZES, EncoderConfig, size_config
from bertwright.model.encoder import Encoder, Pooler, init_weights
from bertwright.model.families.bert import BERT_FAMILY
from bertwright.model.folder import load_weights, open_model, save_model
from bertwright.model.heads import MaskedLMHead, NextSentenceHead
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.pretraining.init_from import size_name
from bertwright.text.wordpiece import train_wordpiece
from tests.support.other_weights import put

# Encoder and pooler, vocabulary 30,522, by (layers, hidden): 12H² + 13H a layer, as the released checkpoints hold.
PUBLISHED = {
    (2, 128): 4_385_920, (2, 256): 9_591_040, (2, 512): 22_458_880, (2, 768): 38_603_520,
    (4, 128): 4_782_464, (4, 256): 11_170_560, (4, 512): 28_763_648, (4, 768): 52_779_264,
    (6, 128): 5_179_008, (6, 256): 12_750_080, (6, 512): 35_068_416, (6, 768): 66_955_008,
    (8, 128): 5_575_552, (8, 256): 14_329_600, (8, 512): 41_373_184, (8, 768): 81_130_752,
    (10, 128): 5_972_096, (10, 256): 15_909_120, (10, 512): 47_677_952, (10, 768): 95_306_496,
    (12, 128): 6_368_640, (12, 256): 17_488_640, (12, 512): 53_982_720, (12, 768): 109_482_240,
    (3, 768): 45_691_392, (12, 1024): 183_987_200, (24, 1024): 335_141_888,
}  # fmt: skip


def small_encoder_config(**changes: object) -> EncoderConfig:
    shape = {"vocab_size": 50, "hidden": 16, "layers": 2, "heads": 2, "intermediate": 32, "max_positions": 24}
    return EncoderConfig.model_validate({**shape, "initializer_range": 0.2, **changes})


def network(config: EncoderConfig, seed: int = 0) -> PretrainingModel:
    model = PretrainingModel(config)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    return model.eval()


def count(*modules: torch.nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.parametrize("name", [*SIZES, *(f"{layers}x{hidden}" for layers, hidden in PUBLISHED)])
def test_sizes_have_the_published_parameter_counts(name: str) -> None:
    config = size_config(name, 30_522)
    with torch.device("meta"):
        assert count(Encoder(config), Pooler(config)) == PUBLISHED[config.layers, config.hidden]


def test_base_with_both_heads_counts_as_the_original() -> None:
    config = size_config("base", 30_522)
    with torch.device("meta"):
        assert count(MaskedLMHead(config)) == 622_650
        assert count(NextSentenceHead(config)) == 1_538
        assert count(PretrainingModel(config)) == 110_106_428


def test_other_vocabularies_count_as_published() -> None:
    with torch.device("meta"):
        for size, vocabulary, published in (
            ("base", 28_996, 108_310_272),
            ("large", 28_996, 333_579_264),
            ("base", 119_547, 177_853_440),
        ):
            config = size_config(size, vocabulary)
            assert count(Encoder(config), Pooler(config)) == published


def test_an_unknown_size_is_refused_with_the_list() -> None:
    with pytest.raises(InputError, match=r"huge.*tiny, mini.* such as 4x256, .* such as 12x384x12"):
        size_config("huge", 100)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("12x384x12", (12, 384, 12, 1536)), ("6x384", (6, 384, 6, 1536)), ("3x312x12", (3, 312, 12, 1248))],
)
def test_any_shape_has_a_size(name: str, shape: tuple[int, ...]) -> None:
    config = size_config(name, 100)
    assert (config.layers, config.hidden, config.heads, config.intermediate) == shape
    assert size_name(config) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "4x100",
            r"have width 64, and 100 is not a multiple of it; name the number of heads as well: 4x100xHEADS",
        ),
        ("4x128x3", r"hidden 128 is not a multiple of 3 heads"),
        *(
            (name, "not known")
            for name in ("4x128x0", "0x128", "4x", "4x128x", "-2x128", "4x128x2x2", "4X128", "²x128")
        ),
        ("9" * 30 + "x128", "not known"),
    ],
)
def test_a_size_that_is_no_shape_is_refused(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        size_config(name, 100)


def test_a_later_token_changes_earlier_states_and_padding_changes_nothing() -> None:
    model = network(small_encoder_config()).encoder
    ids = torch.randint(5, 50, (1, 9), generator=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[0, 7] = (ids[0, 7] + 1) % 50
    whole = torch.ones(1, 9, dtype=torch.bool)
    segments = torch.zeros_like(ids)
    first = model(ids, segments, whole).last
    assert (first[0, 2] - model(other, segments, whole).last[0, 2]).abs().max() > 1e-4
    longer = torch.cat((ids, torch.full((1, 4), 3)), dim=1)
    mask = torch.arange(13)[None] < 9
    padded = model(longer, torch.zeros_like(longer), mask).last
    torch.testing.assert_close(padded[:, :9], first, atol=1e-6, rtol=1e-5)


def test_rows_asked_for_equal_the_same_rows_of_the_whole() -> None:
    model = network(small_encoder_config()).encoder
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(9)[None] < torch.tensor([[9], [6], [4]])
    segments = (torch.arange(9)[None] > 4).long().expand(3, 9)
    whole = model(ids, segments, mask)
    at = torch.tensor([[0, 3], [5, 1], [2, 2]])
    some = model(ids, segments, mask, at=at).last
    torch.testing.assert_close(some, whole.last.gather(1, at[..., None].expand(-1, -1, 16)), atol=1e-6, rtol=1e-5)


def test_attention_in_training_is_the_formula_of_evaluation() -> None:
    model = network(small_encoder_config(hidden_dropout=0.0, attention_dropout=1e-9)).encoder
    ids = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(9)[None] < torch.tensor([[9], [5]])
    still = model(ids, torch.zeros_like(ids), mask).last
    moving = model.train()(ids, torch.zeros_like(ids), mask).last
    torch.testing.assert_close(still[1, :5], moving[1, :5], atol=1e-5, rtol=1e-5)


def test_all_hidden_states_come_on_request() -> None:
    model = network(small_encoder_config()).encoder
    ids = torch.randint(5, 50, (2, 9))
    out = model(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), all_hidden=True)
    assert len(out.hidden) == 3
    torch.testing.assert_close(out.hidden[-1], out.last)


def test_too_many_tokens_are_refused() -> None:
    ids = torch.zeros(1, 25, dtype=torch.int64)
    with pytest.raises(ValueError, match="25 tokens are more than the 24"):
        network(small_encoder_config()).encoder(ids, ids, ids == 0)


def test_dropout_drops_its_share_scales_the_rest_and_follows_the_seed() -> None:
    values = torch.ones(200_000)
    torch.manual_seed(5)
    first = dropout(values, 0.1, True)
    torch.manual_seed(5)
    assert torch.equal(first, dropout(values, 0.1, True))
    assert not torch.equal(first, dropout(values, 0.1, True))
    share = float((first == 0).float().mean())
    assert abs(share - 0.1) < 3 * (0.09 / 200_000) ** 0.5
    torch.testing.assert_close(first[first > 0].unique(), torch.tensor([1 / 0.9]))
    assert dropout(values, 0.1, False) is values


def test_nearly_everything_is_dropped_where_that_is_asked() -> None:
    torch.manual_seed(0)
    assert float((dropout(torch.ones(400_000), 0.999999, True) == 0).float().mean()) > 0.999


def test_dropout_is_even_over_all_four_numbers_of_a_word() -> None:
    torch.manual_seed(6)
    dropped = (dropout(torch.ones(400_000), 0.25, True) == 0).view(-1, 4).float().mean(0)
    assert (dropped - 0.25).abs().max() < 4 * (0.1875 / 100_000) ** 0.5


def test_dropout_gradient_is_the_mask() -> None:
    values = torch.ones(1000, requires_grad=True)
    out = dropout(values, 0.3, True)
    out.sum().backward()
    torch.testing.assert_close(values.grad, out.detach())


def test_initial_weights_are_cut_normals() -> None:
    model = network(small_encoder_config(vocab_size=5000, initializer_range=0.02))
    words = model.encoder.embeddings.word.weight
    assert float(words.detach().abs().max()) <= 0.04
    assert (
        abs(float(words.detach().std()) - 0.0176) < 0.0005
    )  # a normal cut at two deviations has 0.88 of its deviation
    assert float(model.masked_lm.bias.detach().abs().max()) == 0.0


def test_names_on_disk_are_those_of_the_field_and_come_back() -> None:
    model = network(small_encoder_config())
    foreign = BERT_FAMILY.weights_to_foreign(model.state_dict(), "BertForPreTraining")
    assert "bert.encoder.layer.1.attention.self.key.weight" in foreign
    assert "cls.predictions.bias" in foreign
    assert foreign["bert.encoder.layer.0.attention.self.query.weight"].shape == (16, 16)
    back = BERT_FAMILY.weights_from_foreign(foreign, "m")
    assert set(back) == set(model.state_dict())
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


@pytest.fixture
def tokenizer_folder(tmp_path: Path, own_text: Path) -> Path:
    train_wordpiece([own_text.read_text("utf-8")], vocab_size=600).save(tmp_path / "tok")
    return tmp_path / "tok"


def test_a_model_folder_comes_back_whole(tmp_path: Path, tokenizer_folder: Path) -> None:
    config = small_encoder_config(activation="gelu_tanh")
    model = network(config)
    save_model(tmp_path / "m", model, config=config, tokenizer=tokenizer_folder, architecture="BertForPreTraining")
    saved = open_model(str(tmp_path / "m"))
    assert saved.config == config
    other = network(config, seed=9)
    load_weights(other, saved)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_others_may_read_a_model_as_far_as_the_umask_says(tmp_path: Path, tokenizer_folder: Path) -> None:
    config, before = small_encoder_config(), os.umask(0o027)
    try:
        save_model(
            tmp_path / "m",
            network(config),
            config=config,
            tokenizer=tokenizer_folder,
            architecture="BertForPreTraining",
        )
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in (tmp_path / "m").iterdir()} == {"0o640"}


def test_a_truncated_model_file_is_named(tmp_path: Path, tokenizer_folder: Path) -> None:
    config = small_encoder_config()
    save_model(
        tmp_path / "m", network(config), config=config, tokenizer=tokenizer_folder, architecture="BertForPreTraining"
    )
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        open_model(str(tmp_path / "m"))


@pytest.mark.parametrize("source", ["random:enormous", "nowhere"])
def test_what_is_no_model_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=source.split(":")[-1]):
        open_model(source)


def test_weights_without_a_place_are_named(tmp_path: Path, tokenizer_folder: Path) -> None:
    config = small_encoder_config()
    save_model(
        tmp_path / "m", network(config), config=config, tokenizer=tokenizer_folder, architecture="BertForPreTraining"
    )
    weights = load_file(tmp_path / "m" / "model.safetensors")
    put(tmp_path / "m", {**weights, "bert.embeddings.position_ids": torch.arange(9)})  # as older versions wrote it
    assert open_model(str(tmp_path / "m")).architecture == "BertForPreTraining"
    put(tmp_path / "m", {**weights, "bert.encoder.layer.0.adapter.weight": torch.ones(2)})
    with pytest.raises(InputError, match=r"1 of [0-9]+ tensors do not belong to a BERT: .*adapter\.weight"):
        open_model(str(tmp_path / "m"))
