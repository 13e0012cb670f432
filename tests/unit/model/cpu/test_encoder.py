"""Packed layers against the plain model: fp32 to 1e-5, bf16 and 8 bits to a cosine."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.errors import InputError
from bertwright.model.bert import Bert
from bertwright.model.config import EncoderConfig, size_config
from bertwright.model.cpu import kernels, packing
from bertwright.model.cpu.encoder import PackedEncoder, PackedLayer
from bertwright.model.cpu.layers import LayerProducts, with_zero_rows
from bertwright.model.cpu.modern_encoder import PackedModernEncoder
from bertwright.model.cpu.packing import layer_rates, packed_copy
from bertwright.model.cpu.products import HalfProduct, Int8Product, PackedProduct
from bertwright.model.encoder import init_weights
from bertwright.tasks import inference as precision
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.model import Classifier, TextBatch, predict_logits
from tests.support.processor import needs_bytes, needs_halves
from tests.support.published_families import family_named

CLOSE = 1e-5
VOCABULARY = 403  # no multiple of 8
MINI = size_config("mini", VOCABULARY)
SHAPES = ((1, 1), (1, 512), (3, 7), (5, 33), (32, 25))
SYSTEMS = ("bert", "modernbert")
"""Systems whose layers differ; the window of ModernBERT is shorter than most texts here."""
KINDS = ("fp32", pytest.param("bf16", marks=needs_halves), pytest.param("int8", marks=needs_bytes))
FAR = {"fp32": CLOSE, "bf16": 0.05, "int8": 0.05}
"""Largest difference of a logit between two orders of the same computation."""


@pytest.fixture(params=["built", "plain torch"])
def kernels_or_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Once with what is built, once as where there is no compiler."""
    if request.param == "plain torch":
        monkeypatch.setattr(kernels, "library", lambda: None)
    else:
        assert kernels.library() is not None
    return str(request.param)


def noisy_classifier(system: str = "bert", **changes: Any) -> Classifier:
    shape = size_config("mini", VOCABULARY, hidden_dropout=0.0, attention_dropout=0.0)
    config = family_named(system).from_encoder(system, shape, "mini") if system == "modernbert" else shape
    special = {"window": 16, "global_every": 2} if system == "modernbert" else {}
    return noisy(type(config).model_validate(config.model_dump() | special | changes))


def noisy(config: EncoderConfig) -> Classifier:
    model = Classifier(config, 16).eval()
    generator = torch.Generator().manual_seed(0)
    init_weights(model, 0.08, generator)
    with torch.no_grad():  # away from the 0 and 1 that would hide a mistake
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def text_batch(count: int, length: int, *, seed: int = 0) -> TextBatch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    lengths[0] = length
    mask = torch.arange(length) < lengths
    ids = torch.randint(1, VOCABULARY, (count, length), generator=generator) * mask
    return TextBatch(ids, (torch.arange(length) > length // 2).long().expand(count, -1) * mask, mask)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_fp32_is_the_plain_model(shape: tuple[int, int], system: str, kernels_or_torch: str) -> None:
    model = noisy_classifier(system)
    inputs = text_batch(*shape)
    with torch.inference_mode():
        torch.testing.assert_close(packed_copy(model, "fp32")(inputs), model(inputs), atol=CLOSE, rtol=CLOSE)


@needs_bytes
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_points_where_fp32_does(shape: tuple[int, int], system: str, kernels_or_torch: str) -> None:
    model = noisy_classifier(system)
    inputs = text_batch(*shape)
    with torch.inference_mode():
        similarity = torch.cosine_similarity(packed_copy(model, "int8")(inputs), model(inputs))
    assert float(similarity.min()) >= 0.997, similarity
    assert float(similarity.mean()) >= 0.999, similarity


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "albert"])
def test_berts_successors_answer_packed_as_plain(family: str, kind: str) -> None:
    special: dict[str, Any] = {"distilbert": {"num_segments": 0}, "roberta": {}}.get(family, {"embedding_size": 48})
    fields = family_named(family).config_class.model_fields
    values = size_config("mini", VOCABULARY, hidden_dropout=0.0, attention_dropout=0.0).model_dump() | special
    config = family_named(family).config_class.model_validate({name: values[name] for name in values if name in fields})
    model, inputs = noisy(config), text_batch(5, 33)
    packed = precision.in_bf16(copy.deepcopy(model), config) if kind == "bf16" else packed_copy(model, kind)
    assert isinstance(packed.encoder, PackedEncoder)
    with torch.inference_mode():
        exact, answers = model(inputs), packed(inputs).float()
    largest = float((answers - exact).abs().max() / exact.abs().max())
    assert largest <= {"fp32": CLOSE, "bf16": 0.05, "int8": 0.1}[kind]


@needs_halves
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_bf16_is_nearer_to_fp32_than_the_plain_model_in_bf16(shape: tuple[int, int], system: str) -> None:
    model = noisy_classifier(system)
    inputs = text_batch(*shape)
    plain, packed = copy.deepcopy(model).bfloat16(), precision.in_bf16(copy.deepcopy(model), model.encoder.config)
    assert isinstance(packed.encoder, PackedEncoder | PackedModernEncoder)
    with torch.inference_mode():
        exact = model(inputs)
        errors = [float((other(inputs).float() - exact).norm() / exact.norm()) for other in (packed, plain)]
    assert errors[0] < min(errors[1], 0.02), errors


@needs_halves
@pytest.mark.parametrize(
    ("system", "architecture"), [("bert", "BertForPreTraining"), ("modernbert", "BertForMaskedLM")]
)
def test_a_head_that_shares_the_word_embeddings_answers_in_bf16(system: str, architecture: str) -> None:
    config = noisy_classifier(system).encoder.config
    model = Bert(config, architecture).eval()
    init_weights(model, 0.08, torch.Generator().manual_seed(0))
    inputs = text_batch(3, 12)
    with torch.inference_mode():
        exact = model(inputs.ids, inputs.segments, inputs.mask)
        packed = precision.in_bf16(copy.deepcopy(model), config)
        answered = packed(inputs.ids, inputs.segments, inputs.mask)
    assert answered.keys() == exact.keys()
    for name, logits in exact.items():
        real = inputs.mask if logits.ndim == 3 else slice(None)
        similarity = torch.cosine_similarity(answered[name][real].float(), logits[real])
        assert float(similarity.min()) > 0.999, name
        assert answered[name].dtype == (torch.bfloat16 if logits.ndim == 3 else torch.float32)


@pytest.mark.parametrize("system", SYSTEMS)
def test_states_of_padding_are_0_and_a_text_without_tokens_keeps_its_first(system: str) -> None:
    model = noisy_classifier(system)
    inputs = text_batch(4, 19)
    mask = inputs.mask.clone()
    mask[2] = False
    only_first = mask.clone()
    only_first[2, 0] = True
    fast, plain = (part.get_submodule("encoder") for part in (packed_copy(model, "fp32"), model))
    with torch.inference_mode():
        last = fast(inputs.ids, inputs.segments, mask).last
        wanted = plain(inputs.ids, inputs.segments, only_first).last
    assert float(last[~only_first].abs().max()) == 0.0
    torch.testing.assert_close(last[only_first], wanted[only_first], atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("length", [19, 150])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_mask_with_holes_and_chosen_positions(system: str, length: int, kernels_or_torch: str) -> None:
    model = noisy_classifier(system)
    inputs = text_batch(4, length)
    mask = inputs.mask & (torch.arange(length) % 9 != 2)
    at = torch.tensor([[length - 5, 1], [0, 0], [0, 0], [0, 0]])
    mask[0, length - 5] = True
    fast, plain = (part.get_submodule("encoder") for part in (packed_copy(model, "fp32"), model))
    with torch.inference_mode():
        answered, wanted = (encoder(inputs.ids, inputs.segments, mask, at=at).last for encoder in (fast, plain))
    torch.testing.assert_close(answered, wanted, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"activation": "gelu_tanh"}, {"heads": 8}])
@pytest.mark.parametrize("system", SYSTEMS)
def test_few_rows_in_one_call_answer_as_product_after_product(kind: Any, changes: Any, system: str) -> None:
    model = packed_copy(noisy_classifier(system, **changes), kind)
    layers = [part for part in model.modules() if isinstance(part, LayerProducts)]
    for shape in ((1, 1), (1, 9), (3, 11), (2, 16), (17, 1)):
        inputs = text_batch(*shape)
        with torch.inference_mode():
            logits = model(inputs)
            assert all(layer._fused for layer in layers)
            few = [layer.most_fused for layer in layers]
            for layer in layers:
                layer.most_fused = 0
            expected = model(inputs)
            for layer, number in zip(layers, few, strict=True):
                layer.most_fused = number
        assert float((logits - expected).abs().max()) <= FAR[kind]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_answered_alike_alone_and_among_others(kind: Any, system: str) -> None:
    model = packed_copy(noisy_classifier(system), kind)
    inputs = text_batch(6, 31)
    with torch.inference_mode():
        together = model(inputs)
        for row in range(6):
            length = int(inputs.mask[row].sum())
            alone = TextBatch(
                inputs.ids[row : row + 1, :length],
                inputs.segments[row : row + 1, :length],
                inputs.mask[row : row + 1, :length],
            )
            difference = float((model(alone)[0] - together[row]).abs().max())
            assert difference <= (FAR[kind] if kind == "int8" else CLOSE), (row, difference)


@pytest.mark.parametrize("changes", [{"heads": 2}, {"activation": "gelu_tanh"}])
@pytest.mark.parametrize("system", SYSTEMS)
def test_other_heads_and_the_other_gelu(changes: dict[str, Any], system: str, kernels_or_torch: str) -> None:
    model = noisy_classifier(system, **changes)
    inputs = text_batch(4, 19)
    with torch.inference_mode():
        torch.testing.assert_close(packed_copy(model, "fp32")(inputs), model(inputs), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("most_fused", [0, 10_000])
@pytest.mark.parametrize("shape", [(5, 33), (3, 600)])
@pytest.mark.parametrize(
    "changes",
    [
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
        {"classifier_pooling": "cls", "window": 1},
        {"layers": 1, "window": 5, "reaches": ("local",)},
    ],
)
def test_settings_of_modernbert(
    changes: dict[str, Any], shape: tuple[int, int], most_fused: int, kernels_or_torch: str
) -> None:
    model, inputs = noisy_classifier("modernbert", **changes), text_batch(*shape)
    packed = packed_copy(model, "fp32")
    for layer in packed.encoder.layers:
        layer.most_fused = most_fused if kernels_or_torch == "built" else 0
    with torch.inference_mode():
        torch.testing.assert_close(packed(inputs), model(inputs), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_positions_of_a_text_change_nothing_at_the_others(kind: Any) -> None:
    encoder = packed_copy(noisy_classifier("modernbert"), kind).encoder
    inputs = text_batch(2, 190)
    with torch.inference_mode():
        few, many = (
            encoder(inputs.ids, inputs.segments, inputs.mask, at=torch.tensor([near, near])).last[0, :3]
            for near in ([150, 151, 152], [150, 151, 152, 0, 0, 0])
        )
    assert torch.equal(few, many)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_layer_comes_out_for_features(system: str, kernels_or_torch: str) -> None:
    model = noisy_classifier(system)
    inputs = text_batch(4, 19)
    encoders = [part.get_submodule("encoder") for part in (model, packed_copy(model, "fp32"))]
    with torch.inference_mode():
        plain, fast = (
            encoder(inputs.ids, inputs.segments, inputs.mask, all_hidden=True).hidden for encoder in encoders
        )
    assert len(plain) == len(fast) == 5
    real = inputs.mask
    for mine, other in zip(fast, plain, strict=True):
        scale = max(1.0, float(other.abs().max()))  # ModernBERT's states between layers are not normed
        torch.testing.assert_close(mine[real], other[real], atol=CLOSE * scale, rtol=CLOSE)


@needs_bytes
def test_built_and_plain_steps_give_the_same_bytes() -> None:
    generator = torch.Generator().manual_seed(3)
    sums = torch.randn(37, 96, generator=generator) * 50
    scales, bias = torch.rand(37, generator=generator) * 0.05, torch.randn(96, generator=generator)
    for approximate in ("none", "tanh"):
        built, steps_of_it = kernels.activate_quantise(sums.clone(), scales, bias, approximate=approximate)
        wide = torch.nn.functional.gelu(sums * scales[:, None] + bias, approximate=approximate)
        torch.testing.assert_close(steps_of_it, wide.abs().amax(1) / 127, atol=0, rtol=1e-5)
        back = (built.float() - kernels.MIDDLE) * steps_of_it[:, None]
        assert float(((back - wide).abs() / steps_of_it[:, None]).max()) <= 0.501


def test_a_row_of_zeros_becomes_zeros(kernels_or_torch: str) -> None:
    narrow, scales = kernels.quantise(torch.zeros(2, 5))
    assert narrow.tolist() == [[kernels.MIDDLE] * 5] * 2
    assert scales.tolist() == [1.0, 1.0]


def test_nothing_to_answer() -> None:
    encoded = Encoded(ids=(), first=np.zeros(0, dtype=np.int64), cut=np.zeros(0, dtype=np.bool_))
    assert predict_logits(packed_copy(noisy_classifier(), "fp32"), encoded).shape == (0, 16)


def test_the_model_itself_stays_as_it_was() -> None:
    model = noisy_classifier().train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    packed = packed_copy(model, "fp32")
    with torch.inference_mode():
        packed(text_batch(2, 9))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert packed.pooler.dense.weight is model.pooler.dense.weight
    assert all(part.training for part in model.modules())
    assert not any(part.training for part in packed.modules())


def test_auto_is_never_int8_and_what_is_chosen_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for fastest in ("fp32", "bf16"):
        monkeypatch.setattr(precision, "choose_precision", lambda rates, chosen=fastest: chosen)
        assert precision.choose("auto", MINI) == fastest
        assert f"answering in {fastest}" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"--precision int4: allowed are auto, fp32, bf16, int8"):
        precision.choose("int4", MINI)


@needs_halves
def test_auto_measures_the_layers_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own products in bf16 are slower than fp32's on some processors where ours are faster."""
    monkeypatch.setattr(precision, "square_rates", lambda *_: {"fp32": 2.0, "bf16": 1.0})
    before = torch.get_rng_state()
    products: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(packing, "PackedLayer", lambda layer, of: products.append(of) or PackedLayer(layer, of))
        layer_rates.cache_clear()
        rates = layer_rates(MINI)
        assert set(rates) == {"fp32", "bf16"}
        assert layer_rates(MINI) is rates  # measured once
    assert products == [PackedProduct, HalfProduct]
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_default_dtype(torch.float64)
    layer_rates.cache_clear()
    try:
        assert set(layer_rates(MINI)) == {"fp32", "bf16"}
    finally:
        torch.set_default_dtype(torch.float32)
    for faked, chosen in (({"fp32": 1.0, "bf16": 2.0}, "bf16"), ({"fp32": 1.0, "bf16": 1.1}, "fp32")):
        monkeypatch.setattr(precision, "layer_rates", lambda _, faked=faked: faked)
        assert precision.choose("auto", MINI) == chosen
    assert precision.choose("auto", size_config("1x80x1", 100)) == "fp32"  # heads of 80: its layers are torch's
    assert set(layer_rates(noisy_classifier("modernbert").encoder.config)) == {"fp32", "bf16"}


def test_without_the_products_of_bytes_the_plain_way_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert precision.choose("int8", MINI) == "plain"
    assert "lacks exact 8-bit products" in capsys.readouterr().err


def test_a_missing_compiler_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    assert kernels.library.__wrapped__() is None
    assert "the compiled steps could not be built" in capsys.readouterr().err
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kernels.library.__wrapped__() is None
    assert "no C++ compiler" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"", b"\x7fELF and then nothing that could be loaded"])
def test_a_damaged_library_is_built_again(
    damage: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, other = tmp_path / "whole", tmp_path / "other"
    monkeypatch.setenv("XDG_CACHE_HOME", str(whole))
    assert kernels.library.__wrapped__() is not None
    (built,) = (whole / "bertwright").glob("rows-*.so")
    # Never the loaded file itself: this process ends in it.
    damaged = other / built.relative_to(whole)
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(damage)
    monkeypatch.setenv("XDG_CACHE_HOME", str(other))
    assert kernels.library.__wrapped__() is not None
    assert capsys.readouterr().err == ""
    assert any(path.stat().st_size > len(damage) for path in damaged.parent.glob("rows-*.so"))


def test_a_missing_home_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert kernels.library.__wrapped__() is None
    assert "there is no home folder; set XDG_CACHE_HOME" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 10), (4, 100)])
def test_another_default_of_torch_changes_nothing(kind: Any, shape: tuple[int, int]) -> None:
    model, inputs = packed_copy(noisy_classifier(), kind), text_batch(*shape)
    with torch.inference_mode():
        usual = model(inputs)
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(model(inputs), usual)
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("few", [0, 64])
def test_no_rows_are_answered_with_none(few: int) -> None:
    layer = packed_copy(noisy_classifier(), "fp32").get_submodule("encoder").layers[0]
    layer.most_fused = few
    with torch.inference_mode():
        assert layer(torch.zeros(0, 256), torch.zeros(1, dtype=torch.int64)).shape == (0, 256)


def test_the_built_steps_leave_small_numbers_to_the_process() -> None:
    kernels.library()
    assert float(torch.tensor([1e-39]) * 0.5) > 0.0  # some compilers' fast arithmetic rounds denormals to 0 everywhere


@pytest.mark.parametrize("kind", ["fp32", pytest.param("int8", marks=needs_bytes)])
def test_batches_of_many_shapes_need_products_of_few_sizes(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product is compiled for each number of rows, and kept: a service would grow with every new one."""
    model, product = packed_copy(noisy_classifier(), kind), PackedProduct if kind == "fp32" else Int8Product
    sizes: set[int] = set()
    forward = product.forward

    def noted(self: Any, values: torch.Tensor) -> torch.Tensor:
        sizes.add(len(values))
        return forward(self, values)

    monkeypatch.setattr(product, "forward", noted)
    for layer in model.encoder.layers:
        layer.most_fused = 0  # as where oneDNN is the faster way
    shapes = [(count, length) for count in (9, 11) for length in range(31, 64, 4)]
    with torch.inference_mode():
        for shape in shapes:
            model(text_batch(*shape))
    tokens = {int(text_batch(*shape).mask.sum()) for shape in shapes}
    wanted = tokens | {9, 11}  # the last layer is computed at [CLS] alone
    assert sizes == {len(with_zero_rows(torch.ones(count, 1))) for count in wanted}


def test_what_is_filled_up_is_little() -> None:
    counts = range(1, 5000)
    rows = torch.ones(5000, 1)
    padded = [with_zero_rows(rows[:count]) for count in counts]
    assert len({len(one) for one in padded}) <= 104
    for count, one in zip(counts, padded, strict=True):
        assert len(one) - count <= max(7, count / 16)
        assert int(one.count_nonzero()) == count


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_copy_answers_as_the_model_that_was_used(kind: Any, system: str, *, fused: bool) -> None:
    model, inputs = packed_copy(noisy_classifier(system), kind), text_batch(3, 7)
    for layer in model.get_submodule("encoder").layers:
        layer.most_fused = layer.most_fused if fused else 0
    with torch.inference_mode():
        usual = model(inputs)
        copied = copy.deepcopy(model)
        del model
        assert torch.equal(copied(inputs), usual)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_narrow_weights_are_in_memory_once(kind: Any) -> None:
    model = packed_copy(noisy_classifier(), kind)
    product = model.get_submodule("encoder").layers[0].expand
    before = product.weight.clone()
    with torch.inference_mode():
        model(text_batch(1, 8))
    assert product._rows is None
    assert torch.equal(product.weight, before)
