"""model folder → a folder for ONNX Runtime: the graph, its tokenizer, and a comparison with PyTorch."""

import importlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bertwright.console import say
from bertwright.errors import InputError, MissingExtra
from bertwright.files import file_digest, new_folder, write_json
from bertwright.interop.onnx_graph import (
    OPSET,
    SENTENCE_VECTORS,
    GraphModel,
    SentenceModel,
    WrittenGraph,
    outputs_of,
    quiet,
    write_graph,
)
from bertwright.interop.onnx_parity import Agreement, compare, comparison_batches, comparison_rows, comparison_texts
from bertwright.interop.onnx_ranking import LEAST_OVERLAP, RankingAgreement, RankingCheck
from bertwright.model.bert import open_architecture
from bertwright.model.config import encoder_shape
from bertwright.model.encoder import TransformerBackbone
from bertwright.model.folder import SavedModel, copy_description, is_multilabel, open_model, refuse_random_name
from bertwright.model.vector_head import VectorHead, open_vector_head, write_vector_head
from bertwright.output_paths import refuse_existing
from bertwright.tasks.beir import open_retrieval
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.model import TextBatch
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.sentence_vectors import SentenceEncoder, limit_of, text_limit
from bertwright.version import __version__

try:
    import onnx
    from onnx import numpy_helper
    from onnxruntime.quantization import QuantType, quantize_dynamic
except ImportError:
    raise MissingExtra("onnx", "export onnx") from None

TOLERANCE = 1e-4
"""Largest allowed difference of an output of the fp32 graph: absolute, or relative to the largest output beyond 1."""
LEAST_AGREEMENT = 0.97
"""Default least agreement of the int8 graph: fraction of equal answers, cosine of vectors or correlation of scores."""
VECTOR_TOLERANCE = 1e-5
"""Largest allowed difference of a finished vector's components, which are small where vectors have length 1."""
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_CPUINFO = Path("/proc/cpuinfo")


def export_onnx(
    model: str,
    out: Path,
    *,
    int8: bool = False,
    reduce_range: bool = False,
    least_agreement: float = LEAST_AGREEMENT,
    text: Path | None = None,
    check_retrieval: Path | None = None,
    least_overlap: float | None = None,
) -> dict[str, Any]:
    """Write `out`: model.onnx, with `int8` also model_quantized.onnx, config.json, the tokenizer and export.json.

    Of a folder that describes sentence vectors, the graph gives finished vectors. Then the graphs are in `onnx/`, and
    the files of sentence-transformers beside that folder.

    Both graphs are compared with PyTorch on the lines of `text`, or on built-in texts. Nothing is written where an
    output of model.onnx differs by more than TOLERANCE, or an output of model_quantized.onnx agrees less than
    `least_agreement`. Rankings by int8 vectors are compared on these texts, or on the folder `check_retrieval` in
    BEIR's layout, with the limit `least_overlap` (None: LEAST_OVERLAP); see `RankingCheck`. Return the content of
    export.json and its text for a person.

    Raises InputError for such a difference, for an unknown architecture, for random weights, for a check of rankings
    where the graph gives no vectors, and where `out` exists; MissingExtra where a package is missing.
    """
    versions = _versions()
    overlap = LEAST_OVERLAP if least_overlap is None else least_overlap
    _check_request(model, out, {"--least-agreement": least_agreement, "--least-overlap": overlap})
    saved = open_model(model)
    tokenizer, head = open_tokenizer(saved), _vector_head(saved)
    torch_model = open_architecture(saved) if head is None else _vector_model(saved, head)
    for option, value in (("--check-retrieval", check_retrieval), ("--least-overlap", least_overlap)):
        if head is None and value is not None:
            raise InputError(f"{option} {value}: the graph of {model} gives no vectors of texts; leave the option out")
    texts, num_texts = comparison_texts(text)
    rows, num_separate = comparison_rows(torch_model, tokenizer, texts)
    _say_work_of_callers(saved, model)
    if num_texts > len(texts):
        say(f"{text}: the first {len(texts)} of its {num_texts:,} texts are compared")
    batches = list(comparison_batches(torch_model, rows, num_separate))
    data = None if check_retrieval is None else open_retrieval(check_retrieval)
    ranking = RankingCheck(texts, data, least_overlap=overlap, least_agreement=least_agreement)
    with new_folder(out) as folder:
        say("writing model.onnx")
        graphs = folder if head is None else folder / "onnx"
        graphs.mkdir(exist_ok=True)
        written = write_graph(torch_model, graphs / "model.onnx", metadata=_metadata(saved, head))
        say(f"comparing it with PyTorch on {len(rows)} rows")

        def compared(graph: Path) -> dict[str, Agreement]:
            return compare(torch_model, _session(graph), batches, is_multilabel=is_multilabel(saved.extra))

        agreements = compared(graphs / "model.onnx")
        _check_exact(agreements, model)
        result = _description(saved, torch_model, written) | _comparison(rows, batches, agreements)
        if int8:
            result["int8"] = _write_int8(graphs, written, compared, reduce_range=reduce_range, least=least_agreement)
            if head is not None:
                session = _session(graphs / "model_quantized.onnx")
                agreement = ranking.compare(SentenceEncoder(saved, tokenizer, head), session)
                result["int8"]["ranking"] = asdict(agreement) | {"least_overlap": overlap}
        copy_description(saved, folder)
        if head is not None:
            write_vector_head(folder, head, positions=saved.config.max_positions)
        result["versions"] = versions
        files = {file.relative_to(folder).as_posix(): file for file in sorted(graphs.glob("*.onnx*"))}
        result["files"] = {name: file.stat().st_size for name, file in files.items()}
        result["sha256"] = {name: file_digest(file) for name, file in files.items()}
        write_json(folder / "export.json", result)
    return {"out": str(out), **result, "text": _as_text(out, result)}


def _check_request(model: str, out: Path, limits: Mapping[str, float]) -> None:
    """Raise InputError for a folder that cannot be written, limits outside of 0 to 1, and random weights."""
    refuse_existing(out)
    for option, least in limits.items():
        if not 0 <= least <= 1:
            raise InputError(f"{option} {least}: allowed are 0 to 1")
    refuse_random_name(model)


def _write_int8(
    folder: Path,
    written: WrittenGraph,
    compared: Callable[[Path], Mapping[str, Agreement]],
    *,
    reduce_range: bool,
    least: float,
) -> dict[str, Any]:
    """Write model_quantized.onnx and compare it with PyTorch. Raises InputError where it agrees too little."""
    reduced = reduce_range or saturates()
    why = "asked for" if reduce_range else "this processor has no VNNI" if reduced else "this processor has VNNI"
    say(f"writing model_quantized.onnx: weights of {7 if reduced else 8} bits ({why})")
    target = folder / "model_quantized.onnx"
    quantise_graph(folder / "model.onnx", target, reduce_range=reduced, external=len(written.files) > 1)
    agreements = compared(target)
    for name, agreement in agreements.items():
        if not agreement.agreement >= least:  # a NaN too
            raise InputError(
                f"int8: {name}: {agreement.text}, less than --least-agreement {least}; nothing was written. Give texts "
                "like those that the model is for (--text FILE), lower --least-agreement, or leave --int8 out"
            )
    outputs = {name: asdict(agreement) for name, agreement in agreements.items()}
    return {"weight_bits": 7 if reduced else 8, "why": why, "least_agreement": least, "outputs": outputs}


def quantise_graph(source: Path, target: Path, *, reduce_range: bool, external: bool) -> None:
    """Write the graph `source` with int8 weights as `target`. Activations are quantised at run time.

    Each output channel has its own scale. That is as fast as one scale for a matrix, and a third nearer to fp32 on our
    own models. With `reduce_range` 7 of the 8 bits are used. With `external` the weights go into a file beside
    `target`.
    """
    model = onnx.load(source)
    _transpose_weights(model.graph)
    with quiet():
        quantize_dynamic(
            model,
            target,
            per_channel=True,
            weight_type=QuantType.QInt8,
            reduce_range=reduce_range,
            use_external_data_format=external,
        )


def saturates() -> bool:
    """Return whether this processor adds pairs of 8-bit products in 16 bits, where large sums overflow (x86, no VNNI).

    An x86 processor whose flags cannot be read counts as such a processor.
    """
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return False
    flags = _CPUINFO.read_text("utf-8", errors="replace").split() if _CPUINFO.is_file() else []
    return not {"avx512_vnni", "avx_vnni"}.intersection(flags)


def _transpose_weights(graph: onnx.GraphProto) -> None:
    """Store each transposed weight of the graph as a weight: the quantiser takes only products with weights.

    The transposed weight is the tied matrix of a masked LM, which is stored once for both of its uses.
    """
    weights = {weight.name: weight for weight in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        transposed = numpy_helper.to_array(weights[node.input[0]]).T
        graph.initializer.append(numpy_helper.from_array(transposed, node.output[0]))
        graph.node.remove(node)
    # The quantiser transposes some weights in place and then fails on the shapes that are noted for them.
    shapes = [shape for shape in graph.value_info if shape.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(shapes)


def _check_exact(agreements: Mapping[str, Agreement], model: str) -> None:
    for name, agreement in agreements.items():
        tolerance = VECTOR_TOLERANCE if name == SENTENCE_VECTORS else TOLERANCE
        largest, allowed = agreement.largest_difference, tolerance * max(1.0, agreement.largest_value)
        if not largest <= allowed:  # a NaN too
            raise InputError(
                f"{model}: the exported {name} differ from PyTorch's by up to {largest:.2g}, over {allowed:.0e}; "
                "nothing was written"
            )


def _vector_head(saved: SavedModel) -> VectorHead | None:
    """Return the head of a folder that describes sentence vectors; None where the graph gives none."""
    head = None if saved.labels else open_vector_head(Path(saved.source), saved.config.hidden)
    if head is not None:
        head.settings.check_pieces(open_tokenizer(saved).vocab_size, saved.source)
    if head is None or head.settings.include_prompt or not any(head.settings.prompts.values()):
        return head
    say(
        f"{saved.source}: its pooling leaves out the tokens of the prompt, whose number a graph is not told; "
        "the graph gives no sentence vectors"
    )
    return None


def _vector_model(saved: SavedModel, head: VectorHead) -> SentenceModel:
    """Return the encoder of a folder with its head, in evaluation mode."""
    encoder_shape(saved.config, saved.source)
    encoder = frozen_encoder(saved)
    assert isinstance(encoder, TransformerBackbone)
    return SentenceModel(encoder, head).eval()


def _description(saved: SavedModel, model: GraphModel, written: WrittenGraph) -> dict[str, Any]:
    return {
        "model": saved.source,
        "architecture": model.architecture,
        "labels": list(saved.labels),
        "outputs": list(outputs_of(model)),
        "opset": OPSET,
        "layers": saved.config.layers,
        "attention_nodes": written.attention_nodes,
    }


def _comparison(rows: Encoded, batches: list[TextBatch], agreements: Mapping[str, Agreement]) -> dict[str, Any]:
    lengths = [len(ids) for ids in rows.ids]
    return {
        "compared": {"rows": len(rows), "shortest": min(lengths), "longest": max(lengths), "batches": len(batches)},
        "tolerance": TOLERANCE,
        "largest_difference": {name: agreement.largest_difference for name, agreement in agreements.items()},
    }


def _long_setting(saved: SavedModel) -> str:
    """Return the value of `--long` in the model's fine-tuning; "truncate" where it had none."""
    task = saved.extra.get("task")
    return str(task.get("long", "truncate")) if isinstance(task, dict) else "truncate"


def _say_work_of_callers(saved: SavedModel, model: str) -> None:
    """Print what `predict` does beside the graph, which the caller has to do."""
    if (long := _long_setting(saved)) != "truncate":
        say(f"{model}: was fine-tuned with --long {long}; the graph takes rows of tokens, which the caller makes")
    if scale := _scale(saved):
        say(
            f"{model}: its numbers are those of the graph times {scale['spread']:g} plus {scale['centre']:g}; the "
            "metadata of the file have both"
        )
    if temperature := _temperature(saved):
        function = "logistic function" if is_multilabel(saved.extra) else "softmax"
        say(
            f"{model}: was calibrated; its probabilities are the {function} of the logits of the graph divided by "
            f"{temperature['temperature']:g}, the temperature in the metadata of the file"
        )


def _metadata(saved: SavedModel, head: VectorHead | None = None) -> dict[str, str]:
    """Return the metadata of the .onnx file, for programs that have only that file; `labels` and `prompts` are JSON."""
    labels = json.dumps(saved.labels, ensure_ascii=False)
    if head is not None:
        settings = head.settings
        max_tokens = text_limit(saved, settings)
        return {
            "architecture": SentenceModel.architecture,
            "labels": labels,
            "max_tokens": str(max_tokens),
            "max_query_tokens": str(min(limit_of(settings, "query", max_tokens), saved.config.max_positions)),
            "prompts": json.dumps(settings.prompts, ensure_ascii=False),
            "default_prompt": settings.default_prompt or "",
            "similarity": settings.similarity,
        }
    max_tokens = saved.max_length if "max_length" in saved.extra else saved.config.max_positions
    noted = {"architecture": saved.architecture, "labels": labels, "max_tokens": str(max_tokens)}
    return noted | {name: repr(value) for name, value in {**_scale(saved), **_temperature(saved)}.items()}


def _temperature(saved: SavedModel) -> dict[str, float]:
    """Return the number that divides the logits of a calibrated classifier; empty for every other model."""
    task = saved.extra.get("task")
    temperature = float(task.get("temperature", 1.0)) if isinstance(task, dict) else 1.0
    return {} if temperature == 1.0 else {"temperature": temperature}


def _scale(saved: SavedModel) -> dict[str, float]:
    """Return centre and spread of a regression whose outputs must be multiplied by the spread and added to the centre.

    Empty for every other model, and for a regression whose head has them already.
    """
    task = saved.extra.get("task")
    task = task if isinstance(task, dict) else {}
    centre, spread = task.get("centre", 0.0), task.get("spread", 1.0)
    return {} if (centre, spread) == (0.0, 1.0) else {"centre": centre, "spread": spread}


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _versions() -> dict[str, str]:
    """Return the versions of all packages of the export. Raises MissingExtra where one is missing."""
    try:
        versions = {name: str(importlib.import_module(name).__version__) for name in _PACKAGES}
    except ImportError:
        raise MissingExtra("onnx", "export onnx") from None
    return {"bertwright": __version__, "torch": str(torch.__version__), **versions}


def _as_text(out: Path, result: Mapping[str, Any]) -> str:
    compared = result["compared"]
    lines = [
        f"{out}: {result['architecture']}, opset {result['opset']}, outputs {', '.join(result['outputs'])}",
        f"attention: {result['attention_nodes']} nodes for {result['layers']} layers",
        f"compared with PyTorch on {compared['rows']} rows of {compared['shortest']} to {compared['longest']} tokens",
    ]
    lines += [f"{name:28}{size / 1e6:10,.1f} MB" for name, size in result["files"].items()]
    lines += [f"fp32 {name}: largest difference {value:.1e}" for name, value in result["largest_difference"].items()]
    if "int8" in result:
        lines += [
            f"int8 {name}: {Agreement(**values).text}, largest difference {values['largest_difference']:.2g}, "
            f"mean {values['mean_difference']:.2g}"
            for name, values in result["int8"]["outputs"].items()
        ]
        if "ranking" in result["int8"]:
            limit = result["int8"]["ranking"]["least_overlap"]
            ranking = {name: value for name, value in result["int8"]["ranking"].items() if name != "least_overlap"}
            lines.append(f"int8 {SENTENCE_VECTORS}: {RankingAgreement(**ranking).text} (at least {limit:.0%})")
        lines.append(f"int8 weights of {result['int8']['weight_bits']} bits: {result['int8']['why']}")
    return "\n".join(lines)
