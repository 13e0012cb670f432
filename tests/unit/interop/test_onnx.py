"""export onnx: each architecture in ONNX Runtime beside PyTorch at shapes the export has not seen; what is refused."""

import collections
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertwright.cli import main
from bertwright.errors import InputError, MissingExtra
from bertwright.files import digest_note, file_digest
from bertwright.interop import onnx as export
from bertwright.interop import onnx as onnx_int8
from bertwright.interop import onnx_graph
from bertwright.interop import onnx_parity as onnx_compare
from bertwright.interop.onnx import export_onnx
from bertwright.model.bert import ARCHITECTURES, Bert, open_architecture
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.masked_lm import open_pretrained
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import padded
from bertwright.tasks.fill_mask import fill_masks
from bertwright.text.wordpiece import Tokenizer
from tests.support.gpt_bert import random_gpt_bert, saved_gpt_bert
from tests.support.parity import BERT_CLASSES
from tests.support.published_families import FAMILIES, Published, publish

onnx = pytest.importorskip("onnx", reason="in the dev extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="in the dev extra")

LABELS = {"BertForSequenceClassification": ("no", "maybe", "yes"), "BertForTokenClassification": ("O", "B-이름")}
POSITIONS = 40
Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Maker:
    """Model folders of random weights, each made once: no bias is 0 and no norm's weight is 1."""
    root = tmp_path_factory.mktemp("models")

    def make(kind: str, *, labels: tuple[str, ...] | None = None, **shape: Any) -> Path:
        labels = LABELS.get(kind, ()) if labels is None else labels
        folder = root / "-".join([kind, *labels, *map(str, shape.values())])
        if not folder.exists():
            size = len((own_tokenizer / "vocab.txt").read_text("utf-8").splitlines())
            config_values = {
                "hidden": 32,
                "layers": 1,
                "heads": 4,
                "intermediate": 48,
                "max_positions": POSITIONS,
            } | shape
            config = EncoderConfig.model_validate({"vocab_size": size, **config_values})
            model = Bert(config, kind, num_labels=len(labels) or 2)
            draw = torch.Generator().manual_seed(7)
            init_weights(model, 0.2, draw)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
            save_model(folder, model, config=config, tokenizer=own_tokenizer, architecture=kind, labels=labels)
        return folder

    return make


SHAPES = {"BertModel": {"layers": 3}, "BertForQuestionAnswering": {"layers": 2, "activation": "gelu_tanh"}}
"""Shape of the exports that several tests use; the others have one layer."""
OTHER = ("BertForMaskedLM", "BertForNextSentencePrediction", "BertForTokenClassification")
"""Exporting takes seconds, and these have no part that another architecture lacks."""
KINDS = [pytest.param(kind, marks=[pytest.mark.slow] if kind in OTHER else []) for kind in BERT_CLASSES]
Exports = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, random_model: Maker) -> Exports:
    """Each architecture exported once, with int8 of any agreement: its folder, and the report of the export."""
    root = tmp_path_factory.mktemp("exports")
    results: dict[str, dict[str, Any]] = {}

    def get(kind: str) -> tuple[Path, dict[str, Any]]:
        if kind not in results:
            folder = random_model(kind, **SHAPES.get(kind, {}))
            results[kind] = export_onnx(str(folder), root / kind, int8=True, least_agreement=0.0)
        return root / kind, results[kind]

    return get


@pytest.fixture
def at_hand(exported: Exports, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Spare torch's exporter the work: a model's graph is that of `exported`, after `change` of its weights."""

    def use(kind: str, change: Callable[[dict[str, Any]], None] = lambda _: None) -> str:
        folder, result = exported(kind)

        def write_again(model: Bert, path: Path, *, metadata: dict[str, str]) -> onnx_graph.WrittenGraph:
            graph = onnx.load(folder / "model.onnx")
            change({weight.name: weight for weight in graph.graph.initializer})
            onnx.save(graph, path)
            return onnx_graph.WrittenGraph((path.name,), result["attention_nodes"])

        monkeypatch.setattr(export, "write_graph", write_again)
        return str(result["model"])

    return use


def random_batch(kind: str, rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, segments and mask [rows, length], or [rows, 5, length] of choices, padded on the right."""
    shape = (rows, 5) if kind == "BertForMultipleChoice" else (rows,)
    draw = torch.Generator().manual_seed(rows * 100 + length)
    mask = torch.arange(length) < torch.randint(1, length + 1, (*shape, 1), generator=draw)
    ids = torch.randint(5, 300, (*shape, length), generator=draw)
    return ids * mask, ((torch.arange(length) >= length // 2) & mask).long(), mask


def session_outputs(session: Any, ids: Tensor, segments: Tensor, mask: Tensor) -> list[NDArray[np.float32]]:
    feeds = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": segments}
    outputs: list[NDArray[np.float32]] = session.run(None, {name: values.numpy() for name, values in feeds.items()})
    return outputs


def open_session(path: Path, optimised: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def nodes(path: Path) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_answers_as_pytorch_at_other_shapes(exported: Exports, kind: str) -> None:
    """Real positions within 1e-5: one row, one token, as many as there are positions."""
    folder, result = exported(kind)
    model = open_architecture(open_model(result["model"]))
    session = open_session(folder / "model.onnx")
    assert [entry.name for entry in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    choices = ["choices"] if kind == "BertForMultipleChoice" else []
    assert all(entry.shape == ["batch", *choices, "tokens"] for entry in session.get_inputs())
    assert tuple(entry.name for entry in session.get_outputs()) == ARCHITECTURES[kind].outputs
    for rows, length in ((1, 1), (1, 17), (7, 4), (3, POSITIONS)):
        ids, segments, mask = random_batch(kind, rows, length)
        with torch.inference_mode():
            wanted = model(ids, segments, mask)
        for values, output in zip(wanted.values(), session_outputs(session, ids, segments, mask), strict=True):
            assert output.shape == values.shape
            real = mask.numpy() if values.shape[:2] == mask.shape else slice(None)
            np.testing.assert_allclose(output[real], values.numpy()[real], atol=1e-5, rtol=0)
    with pytest.raises(Exception, match=r"broadcast|dimension"):  # no wrong answer where there are no positions
        session_outputs(session, *random_batch(kind, 1, POSITIONS + 1))


def test_attention_is_one_node_a_layer_also_after_onnx_runtime_has_optimised(exported: Exports, tmp_path: Path) -> None:
    """ONNX Runtime puts what is around it together: two norms a layer and the embeddings', an activation a layer."""
    folder, result = exported("BertModel")
    assert (result["attention_nodes"], result["layers"]) == (3, 3)
    assert nodes(folder / "model.onnx")["Attention"] == 3
    open_session(folder / "model.onnx", tmp_path / "optimised.onnx")
    optimised = nodes(tmp_path / "optimised.onnx")
    assert (optimised["Attention"], optimised["SkipLayerNormalization"], optimised["BiasGelu"]) == (3, 7, 3)
    assert not optimised["LayerNormalization"] + optimised["Softmax"] + optimised["Erf"] + optimised["Transpose"]
    assert nodes(folder / "model_quantized.onnx")["QAttention"] == 3
    open_session(folder / "model_quantized.onnx", tmp_path / "optimised8.onnx")
    optimised = nodes(tmp_path / "optimised8.onnx")
    products = 3 * 3 + 1  # of a layer beside attention's own, and the pooler's
    assert (optimised["QAttention"], optimised["DynamicQuantizeMatMul"], optimised["MatMul"]) == (3, products, 0)


def test_the_file_says_at_how_many_tokens_its_task_cut_texts(exported: Exports) -> None:
    _, result = exported("BertForSequenceClassification")
    saved = replace(open_model(result["model"]), extra={"max_length": 24, "task": {"long": "windows"}})
    assert export._metadata(saved)["max_tokens"] == "24"
    assert export._long_setting(saved) == "windows"
    assert "centre" not in export._metadata(saved)


def test_the_file_has_the_scale_of_numbers_that_its_head_has_not(exported: Exports) -> None:
    _, result = exported("BertForSequenceClassification")
    task = {"kind": "regression", "centre": 2012.5, "spread": 1.7}
    noted = export._metadata(replace(open_model(result["model"]), extra={"task": task}))
    assert (float(noted["centre"]), float(noted["spread"])) == (2012.5, 1.7)


def test_the_file_has_the_temperature_of_a_calibrated_classifier(
    exported: Exports, capsys: pytest.CaptureFixture[str]
) -> None:
    _, result = exported("BertForSequenceClassification")
    saved = replace(open_model(result["model"]), extra={"task": {"kind": "single_label", "temperature": 2.5}})
    assert float(export._metadata(saved)["temperature"]) == 2.5
    export._say_work_of_callers(saved, "folder")
    assert "the softmax of the logits of the graph divided by 2.5" in capsys.readouterr().err
    export._say_work_of_callers(replace(saved, extra={"task": {"kind": "multilabel", "temperature": 2.5}}), "folder")
    assert "the logistic function of the logits of the graph divided by 2.5" in capsys.readouterr().err


def test_the_folder_and_the_file_say_what_they_are(exported: Exports) -> None:
    folder, result = exported("BertForSequenceClassification")
    source = Path(result["model"])
    names = ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [*names, "export.json", "model.onnx", "model_quantized.onnx"]
    )
    assert all((folder / name).read_bytes() == (source / name).read_bytes() for name in names)
    written = json.loads((folder / "export.json").read_text("utf-8"))
    assert written == {key: value for key, value in result.items() if key not in ("out", "text")}
    assert written["files"] == {file.name: file.stat().st_size for file in folder.glob("*.onnx")}
    assert written["sha256"] == {file.name: file_digest(file) for file in folder.glob("*.onnx")}
    assert written["files"]["model_quantized.onnx"] < written["files"]["model.onnx"]
    assert (written["opset"], written["outputs"], written["labels"]) == (20, ["logits"], ["no", "maybe", "yes"])
    assert written["compared"] == {"rows": 82, "shortest": 5, "longest": POSITIONS, "batches": 22}
    assert set(written["versions"]) == {"bertwright", "torch", "onnx", "onnxscript", "onnxruntime"}
    assert written["largest_difference"]["logits"] < 1e-5
    assert result["text"].splitlines()[1] == "attention: 1 nodes for 1 layers"
    for name in ("model.onnx", "model_quantized.onnx"):
        graph = onnx.load(folder / name)
        noted = {entry.key: entry.value for entry in graph.metadata_props}
        assert json.loads(noted["labels"]) == ["no", "maybe", "yes"]
        assert (noted["architecture"], noted["max_tokens"]) == ("BertForSequenceClassification", str(POSITIONS))
        assert [opset.version for opset in graph.opset_import if opset.domain in ("", "ai.onnx")] == [20]
        assert b"pkg.torch" not in (folder / name).read_bytes()  # the exporter's notes
    assert onnx.load(folder / "model.onnx").producer_name == "bertwright"


def test_the_tied_matrix_stands_there_once_and_as_int8_twice(exported: Exports) -> None:
    folder, result = exported("BertForPreTraining")
    vocabulary = open_model(result["model"]).config.vocab_size
    counts = {}
    for name in ("model.onnx", "model_quantized.onnx"):
        weights = onnx.load(folder / name).graph.initializer
        counts[name] = [weight.data_type for weight in weights if sorted(weight.dims) == [32, vocabulary]]
    kinds = onnx.TensorProto
    assert counts == {"model.onnx": [kinds.FLOAT], "model_quantized.onnx": [kinds.UINT8, kinds.INT8]} or counts == {
        "model.onnx": [kinds.FLOAT],
        "model_quantized.onnx": [kinds.INT8, kinds.UINT8],
    }


def change_one(weights: dict[str, Any], value: float) -> None:
    name = next(name for name in weights if name.endswith("layers.0.expand.bias"))
    changed = onnx.numpy_helper.to_array(weights[name]).copy()
    changed[3] += value
    weights[name].CopyFrom(onnx.numpy_helper.from_array(changed, name))


@pytest.mark.parametrize("value", [0.01, float("nan")])
def test_a_graph_that_is_not_the_model_is_refused(at_hand: Callable[..., str], tmp_path: Path, value: float) -> None:
    """A graph with one changed number is refused, and nothing is left behind."""
    model = at_hand("BertForPreTraining", lambda weights: change_one(weights, value))
    with pytest.raises(
        InputError, match=r"the exported prediction_logits differ from PyTorch's by up to .*, over \d+e-0[34]"
    ):
        export_onnx(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    model = at_hand("BertForPreTraining", lambda weights: change_one(weights, 0.0))
    assert export_onnx(model, tmp_path / "out")["largest_difference"]["prediction_logits"] < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_agreement_of_int8_is_the_reported_one(exported: Exports, kind: str) -> None:
    """Counted again from the answers of the file: equal answers, or the mean cosine."""
    folder, result = exported(kind)
    saved = open_model(result["model"])
    model = open_architecture(saved)
    texts, there = onnx_compare.comparison_texts(None)
    assert there == len(texts) == 40
    rows, apart = onnx_compare.comparison_rows(model, open_tokenizer(saved), texts)
    session = open_session(folder / "model_quantized.onnx")
    differences: dict[str, list[float]] = collections.defaultdict(list)
    largest: dict[str, float] = collections.defaultdict(float)
    for batch in onnx_compare.comparison_batches(model, rows, apart):
        with torch.inference_mode():
            wanted = model(batch.ids, batch.segments, batch.mask)
        others = session_outputs(session, batch.ids.long(), batch.segments.long(), batch.mask)
        for (name, exact), other in zip(wanted.items(), map(torch.from_numpy, others), strict=True):
            if exact.shape[:2] == batch.mask.shape and name.endswith(("state", "prediction_logits", "logits")):
                for one, another, mask in zip(exact, other, batch.mask, strict=True):
                    pairs = (
                        zip(one[mask], another[mask], strict=True) if one.ndim == 2 else [(one[mask], another[mask])]
                    )
                    for first, second in pairs:
                        differences[name].append(agree(kind, first, second))
                        largest[name] = max(largest[name], float((first - second).abs().max()))
            else:
                for first, second in zip(exact, other, strict=True):
                    differences[name].append(agree(kind, first, second))
                    largest[name] = max(largest[name], float((first - second).abs().max()))
    for name, said in result["int8"]["outputs"].items():
        assert said["count"] == len(differences[name])
        assert said["agreement"] == pytest.approx(np.mean(differences[name]), abs=1e-6)
        assert said["largest_difference"] == pytest.approx(largest[name], rel=1e-4)
        assert said["largest_difference"] > 1e-3  # weights of 8 bits are not those of 32
        assert said["agreement"] > 0.9
    assert set(differences) == set(ARCHITECTURES[kind].outputs)


def test_a_text_of_a_megabyte_is_read_once_or_twice_and_not_joined_with_itself(
    random_model: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = open_model(str(random_model("BertModel")))
    model, words = open_architecture(saved), open_tokenizer(saved)
    most = saved.config.max_positions
    texts, _ = onnx_compare.comparison_texts(None)
    rows, apart = onnx_compare.comparison_rows(model, words, texts)
    cut = encode(words, [" ".join(texts)] * 3, max_length=most)  # the texts have more pieces than the model positions
    assert apart == 80
    assert [len(ids) for ids in rows.ids[apart:]] == [length for length in (most, most // 2, most // 4) if length >= 16]
    assert rows.ids[apart].tolist() == cut.ids[0].tolist()
    assert rows.first[apart:].tolist() == [len(ids) for ids in rows.ids[apart:]]
    read = 0

    def counted(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        nonlocal read
        read += sum(map(len, texts))
        return plain(self, texts)

    plain = Tokenizer.ids
    monkeypatch.setattr(Tokenizer, "ids", counted)
    rows, _ = onnx_compare.comparison_rows(model, words, ["the ferry " * 2000])
    assert read <= 3 * len("the ferry " * 2000)
    assert max(len(ids) for ids in rows.ids) == most
    rows, _ = onnx_compare.comparison_rows(model, words, ["\u200b"])  # of which no piece is left
    assert max(len(ids) for ids in rows.ids) == 3


def agree(kind: str, first: Tensor, second: Tensor) -> float:
    if kind == "BertModel":
        return float(torch.nn.functional.cosine_similarity(first, second, dim=0))
    return float(first.argmax() == second.argmax())


def test_scores_agree_as_far_as_they_rise_and_fall_together(random_model: Maker) -> None:
    """A model with one output has no answers to be equal: the correlation of its scores."""
    tally = onnx_compare._Tally("correlation")
    scores = np.array([[0.1], [0.9], [0.4]], dtype=np.float32)
    tally.add(scores[:2], 2 * scores[:2] + 1, None)
    tally.add(scores[2:], 2 * scores[2:] + 1, None)
    assert (tally.result().agreement, tally.result().count) == (pytest.approx(1.0), 3)
    model = open_architecture(open_model(str(random_model("BertForSequenceClassification", labels=("score",)))))
    assert onnx_compare._measure(model.architecture, (8, model.classifier.linear.out_features), False) == "correlation"


def test_sets_of_labels_agree_where_every_label_does(random_model: Maker) -> None:
    """The highest output is the same in all four rows, the labels that apply in two."""
    tally = onnx_compare._Tally(onnx_compare._measure("BertForSequenceClassification", (4, 3), True))
    wanted = np.array([[3, 1, -1], [3, 1, -1], [-1, -2, -3], [3, -1, -1]], dtype=np.float32)
    logits = np.array([[3, 0.5, -1], [3, -0.5, -1], [0.5, -2, -3], [2, -3, -2]], dtype=np.float32)
    tally.add(wanted, logits, None)
    assert tally.result().agreement == 0.5
    assert tally.result().text == "50.00% of 4 sets of labels equal"


@pytest.mark.parametrize("several", [True, False])
def test_a_multilabel_model_is_known_by_its_task(
    several: bool, random_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = []
    monkeypatch.setattr(export, "write_graph", lambda *_, **__: onnx_graph.WrittenGraph(attention_nodes=1, files=()))
    monkeypatch.setattr(export, "_session", lambda _: None)
    monkeypatch.setattr(export, "compare", lambda *_, is_multilabel: questions.append(is_multilabel) or {})
    saved = open_model(str(random_model("BertForSequenceClassification")))
    noted = {"task": {"kind": "multilabel"}} if several else {}
    monkeypatch.setattr(export, "open_model", lambda _: replace(saved, extra=noted))
    export_onnx("model", tmp_path / "out")
    assert questions == [several]


def test_large_numbers_may_differ_by_as_much_as_their_last_digits() -> None:
    for scale, difference, is_right in ((2e5, 0.03, True), (2e5, 30.0, False), (1.0, 5e-5, True), (0.1, 2e-4, False)):
        tally = onnx_compare._Tally("correlation")
        wanted = scale * np.array([[0.5], [1.0], [0.75]], dtype=np.float32)
        tally.add(wanted, wanted + np.float32(difference), None)
        if is_right:
            export._check_exact({"logits": tally.result()}, "model")
        else:
            with pytest.raises(InputError, match="the exported logits differ"):
                export._check_exact({"logits": tally.result()}, "model")


def test_too_little_agreement_is_refused(at_hand: Callable[..., str], tmp_path: Path) -> None:
    model = at_hand("BertForPreTraining")
    with pytest.raises(InputError, match=r"int8: prediction_logits: 9\d\.\d\d% of \d.* answers equal, less than"):
        export_onnx(model, tmp_path / "out", int8=True, least_agreement=1.0)
    assert list(tmp_path.iterdir()) == []


def test_seven_bits_where_eight_would_overflow(
    at_hand: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor without VNNI gets weights of -64 to 64; so does any with reduce_range."""
    model = at_hand("BertForSequenceClassification")
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 avx512f avx512_vnni\n")
    monkeypatch.setattr(onnx_int8, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(onnx_int8.platform, "machine", lambda: "x86_64")
    said = {}
    for case, flags, reduced in (
        ("with", "avx512_vnni", False),
        ("asked", "avx_vnni", True),
        ("without", "avx2", False),
    ):
        (tmp_path / "cpuinfo").write_text(f"flags : fpu {flags}\n")
        result = export_onnx(model, tmp_path / case, int8=True, reduce_range=reduced, least_agreement=0.0)
        weights = onnx.load(tmp_path / case / "model_quantized.onnx").graph.initializer
        values = [onnx.numpy_helper.to_array(weight) for weight in weights if weight.data_type == onnx.TensorProto.INT8]
        largest = max(int(np.abs(value.astype(int)).max()) for value in values)
        said[case] = (result["int8"]["weight_bits"], result["int8"]["why"], largest)
    assert said["with"] == (8, "this processor has VNNI", 127)
    assert said["asked"][:2] == (7, "asked for")
    assert said["without"][:2] == (7, "this processor has no VNNI")
    assert said["asked"][2] == said["without"][2] <= 64
    monkeypatch.setattr(onnx_int8.platform, "machine", lambda: "aarch64")
    assert not onnx_int8.saturates()
    monkeypatch.setattr(onnx_int8.platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(onnx_int8, "_CPUINFO", tmp_path / "absent")
    assert onnx_int8.saturates()


@pytest.mark.slow
def test_weights_that_do_not_fit_into_the_file_lie_beside_it(
    random_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "MAX_INTERNAL_BYTES", 1000)
    result = export_onnx(
        str(random_model("BertForNextSentencePrediction")), tmp_path / "out", int8=True, least_agreement=0.0
    )
    names = ["model.onnx", "model.onnx.data", "model_quantized.onnx", "model_quantized.onnx.data"]
    assert list(result["files"]) == names
    moved = (tmp_path / "out").rename(tmp_path / "elsewhere")
    ids, segments, mask = random_batch("BertForNextSentencePrediction", 3, 9)
    one, other = (session_outputs(open_session(moved / name), ids, segments, mask)[0] for name in (names[0], names[2]))
    np.testing.assert_allclose(one, other, atol=0.3)
    (moved / names[1]).unlink()
    with pytest.raises(Exception, match=r"model\.onnx\.data"):
        open_session(moved / names[0])


@pytest.mark.slow
def test_the_graph_of_a_gpt_bert_has_the_logits_of_a_piece_at_its_own_position(
    tmp_path: Path, own_tokenizer: Path
) -> None:
    source = saved_gpt_bert(tmp_path / "model", random_gpt_bert(own_tokenizer), own_tokenizer)
    export_onnx(source, tmp_path / "out")
    tokenizer, model = Tokenizer.load(own_tokenizer), open_pretrained(open_model(source))
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.ids(["the [MASK] bridge"], special=True)[0], tokenizer.sep_id]])
    graph = open_session(tmp_path / "out" / "model.onnx")
    (logits,) = session_outputs(graph, ids, torch.zeros_like(ids), torch.ones_like(ids))
    masked = logits[0, ids[0].tolist().index(tokenizer.mask_id)]
    best = fill_masks(model, tokenizer, "the [MASK] bridge", top_k=3)[0]
    assert [tokenizer.pieces[index] for index in masked.argsort()[::-1][:3]] == list(best.pieces)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForSequenceClassification"])
@pytest.mark.parametrize("published", FAMILIES, ids=lambda published: published.family)
def test_the_graph_of_a_successor_answers_as_transformers(
    published: Published, kind: str, tmp_path: Path, own_tokenizer: Path
) -> None:
    theirs = publish(tmp_path / "m", published, kind, own_tokenizer)
    export_onnx(str(tmp_path / "m"), tmp_path / "out", int8=True, least_agreement=0.0)
    for rows, length in ((1, 1), (7, 4), (3, 17)):
        ids, segments, mask = random_batch(kind, rows, length)
        with torch.inference_mode():
            wanted = theirs(input_ids=ids, attention_mask=mask.long()).logits.numpy()
        real = mask.numpy() if kind == "BertForMaskedLM" else slice(None)
        for name, difference in (("model.onnx", 1e-5), ("model_quantized.onnx", 0.2)):
            session = open_session(tmp_path / "out" / name)
            (answers,) = session_outputs(session, ids, torch.zeros_like(segments), mask)
            np.testing.assert_allclose(answers[real], wanted[real], atol=difference * np.abs(wanted).max(), rtol=0)


def test_what_cannot_be_exported_is_refused(
    random_model: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line: exit code 2, one line, nothing written."""
    model = random_model("BertForSequenceClassification")
    (tmp_path / "there").mkdir()
    (tmp_path / "empty.txt").write_text("\n \n")
    for name, change in (
        ("truncated", lambda folder: (folder / "model.safetensors").write_bytes(b"\x10" * 40)),
        ("of elsewhere", lambda folder: elsewhere(folder, b"\x10" * 40)),
        ("headless", lambda folder: rewritten(folder / "config.json", "ForSequenceClassification", "ForMaskedLM")),
        ("unknown", lambda folder: rewritten(folder / "config.json", "ForSequenceClassification", "LMHeadModel")),
        ("wordless", lambda folder: (folder / "vocab.txt").unlink() or (folder / "tokenizer.json").unlink()),
    ):
        folder = tmp_path / name
        folder.mkdir()
        for file in model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        change(folder)
    before = sorted(tmp_path.rglob("*"))
    out = ["--out", str(tmp_path / "new")]
    for arguments, message in (
        (["--model", str(model), "--out", str(tmp_path / "there")], "there: exists already; name another folder"),
        (["--model", "random:tiny", *out], "random:tiny: random weights have learned nothing; name a model folder"),
        (["--model", str(tmp_path / "absent"), *out], "absent: not a model folder"),
        (["--model", str(tmp_path / "truncated"), *out], "model.safetensors: expected the sha256 "),
        (["--model", str(tmp_path / "of elsewhere"), *out], "model.safetensors: broken or truncated safetensors file"),
        (["--model", str(tmp_path / "headless"), *out], "the model has no weights for cls.predictions."),
        (["--model", str(tmp_path / "unknown"), *out], "architecture 'BertLMHeadModel' is not known"),
        (["--model", str(tmp_path / "wordless"), *out], "wordless"),
        (["--model", str(model), *out, "--text", str(tmp_path / "empty.txt")], "empty.txt: holds no line of text"),
        (["--model", str(model), *out, "--text", str(tmp_path / "none.txt")], "none.txt: cannot be opened"),
        (["--model", str(model), *out, "--reduce-range"], "--reduce-range, --least-agreement, --check-retrieval and"),
        (
            ["--model", str(model), *out, "--int8", "--least-agreement", "97"],
            "--least-agreement 97.0: allowed are 0 to",
        ),
    ):
        assert main(["export", "onnx", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error, error
        assert sorted(tmp_path.rglob("*")) == before


def elsewhere(folder: Path, data: bytes) -> None:
    """The weights of a folder that another program wrote, which notes no digest."""
    (folder / "model.safetensors").write_bytes(data)
    digest_note(folder / "model.safetensors").unlink()


def rewritten(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_the_install_line_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"^export onnx needs the extra 'onnx': pip install 'bertwright\[onnx\]'$"):
        export_onnx("any", tmp_path / "out")


def test_the_command_says_it_in_words_and_as_json(
    at_hand: Callable[..., str], own_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = at_hand("BertForSequenceClassification")
    options = ["export", "onnx", "--model", model, "--int8", "--least-agreement", "0.5"]
    assert main([*options, "--out", str(tmp_path / "words")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'words'}: BertForSequenceClassification, opset 20, outputs logits"
    assert lines[2] == f"compared with PyTorch on 82 rows of 5 to {POSITIONS} tokens"
    assert any(line.startswith("model_quantized.onnx ") for line in lines)
    text = tmp_path / "many.txt"
    text.write_text(own_text.read_text("utf-8") * 10, "utf-8")
    assert main([*options, "--out", str(tmp_path / "json"), "--text", str(text), "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert (said["out"], said["architecture"]) == (str(tmp_path / "json"), "BertForSequenceClassification")
    there = sum(bool(line.strip()) for line in text.read_text("utf-8").splitlines())
    assert f"the first 256 of its {there} texts are compared" in captured.err
    assert said["compared"]["rows"] == 2 * 256 + 2
    assert said["int8"]["outputs"]["logits"]["count"] == 2 * 256 + 2


def test_the_lines_of_the_manual_give_the_labels(
    exported: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python of docs/export.md, run as it stands there beside a folder called DIR; PyTorch has the same answers."""
    manual = (Path(__file__).parents[3] / "docs" / "export.md").read_text("utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", manual.partition("## Run the model")[2], re.DOTALL)
    folder, result = exported("BertForSequenceClassification")
    (tmp_path / "DIR").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(lines, names)
    printed = capsys.readouterr().out
    saved = open_model(result["model"])
    rows = encode(open_tokenizer(saved), names["texts"], max_length=POSITIONS)
    batch = padded(rows, range(2), pad_id=0)
    with torch.inference_mode():
        logits = open_architecture(saved)(batch.ids, batch.segments, batch.mask)["logits"]
    np.testing.assert_allclose(names["logits"], logits.numpy(), atol=1e-5)
    assert printed == f"{[saved.labels[best] for best in logits.argmax(-1)]}\n"
