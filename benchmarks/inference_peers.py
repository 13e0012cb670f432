"""A classifier of random weights → the other programs that answer with it.

Each is a function (ids, segments, mask: int64 arrays [B, T]) → logits [B, L]. A program that cannot run here is left
out, and standard error says why.
"""

import importlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from bertwright.interop.onnx import quantise_graph, saturates
from bertwright.interop.onnx_graph import quiet, write_graph
from bertwright.model.bert import Bert
from bertwright.model.families import family_of
from bertwright.model.families.tables import EncoderFamily

Numbers = NDArray[Any]
Answer = Callable[[Numbers, Numbers, Numbers], Numbers]
Batch = tuple[Numbers, Numbers, Numbers]

_INSTALL = "to install it: pip install 'bertwright[bench]', or for zentorch: pip install zentorch deprecated"
ARCHITECTURE = "BertForSequenceClassification"
NAMES = ("input_ids", "token_type_ids", "attention_mask")


class CannotRun(Exception):
    """A program is installed and cannot be measured here."""


def peers(
    model: Bert,
    calibration: list[Batch],
    *,
    folder: Path,
    threads: int,
    bf16: bool,
    int8: bool,
    chosen: tuple[str, ...] = ("",),
) -> dict[str, Answer]:
    """By name, the plain ones first; `folder` is for the graphs that are written on the way.

    chosen: first words of the names of those that are built. CTranslate2 must be among them: the others are slower in a
    process with its threads.
    """
    theirs = as_transformers(model)
    builders: dict[str, Callable[[], Answer]] = {
        "transformers fp32": lambda: in_torch(theirs),
        "torch.compile with freezing fp32": lambda: in_torch(compiled(as_transformers(model))),
        "AOTInductor fp32": lambda: ahead_of_time(as_transformers(model), folder),
        "zentorch fp32": lambda: in_torch(zentorch(as_transformers(model))),
        "torch dynamic int8": lambda: in_torch(dynamic_int8(model)),
        "ONNX Runtime fp32": lambda: onnx_runtime(own_graph(model, folder), threads),
        "ONNX Runtime int8": lambda: onnx_runtime(own_int8(model, folder), threads),
        "ONNX Runtime's optimiser fp32": lambda: onnx_runtime(optimised(theirs, model, folder), threads),
        "ONNX Runtime's optimiser int8": lambda: onnx_runtime(optimised(theirs, model, folder, int8=True), threads),
        "OpenVINO fp32": lambda: openvino(theirs, threads, "f32"),
        "OpenVINO int8 (NNCF)": lambda: openvino(theirs, threads, "f32", calibration=calibration),
    }
    if bf16:
        builders |= {
            "transformers bf16": lambda: in_torch(as_transformers(model).bfloat16()),
            "torch.compile with freezing bf16": lambda: in_torch(compiled(as_transformers(model).bfloat16())),
            "AOTInductor bf16": lambda: ahead_of_time(as_transformers(model).bfloat16(), folder),
            "zentorch bf16": lambda: in_torch(zentorch(as_transformers(model).bfloat16())),
            "OpenVINO bf16": lambda: openvino(theirs, threads, "bf16"),
            "OpenVINO int8 (NNCF), rest bf16": lambda: openvino(theirs, threads, "bf16", calibration=calibration),
        }
    kinds = {"fp32": "float32", "int8": "int8", **({"bf16": "bfloat16"} if bf16 else {})}
    for precision, kind in kinds.items():  # the last ones: they are refused where zentorch is there
        builders[f"CTranslate2 {precision}"] = partial(ctranslate2, model, threads, kind)
    if unknown := [words for words in chosen if not any(name.startswith(words) for name in builders)]:
        raise SystemExit(f"--peers {', '.join(unknown)}: expected first words of {', '.join(builders)}")
    programs = {}
    for name, build in builders.items():
        if not name.startswith(chosen) or ("int8" in name and not int8):
            continue
        if name.startswith("CTranslate2") and "" in chosen:
            print(
                f"{name}: left out, since its threads slow the others; --peers CTranslate2 measures it", file=sys.stderr
            )
            continue
        try:
            programs[name] = build()
        except (ImportError, OSError) as error:
            print(f"{name}: left out ({error}); {_INSTALL}", file=sys.stderr)
        except CannotRun as error:
            print(f"{name}: left out ({error})", file=sys.stderr)
    return programs


def as_transformers(model: Bert, *, attention: str = "sdpa") -> Any:
    """transformers' own class with the same weights."""
    family = family_of(model.encoder.config)
    assert isinstance(family, EncoderFamily)
    labels = tuple(map(str, range(model.classifier.linear.out_features)))
    described = family.config_to_json(model.encoder.config, ARCHITECTURE, labels)
    of_transformers = getattr(transformers, described["architectures"][0])
    theirs = of_transformers(of_transformers.config_class(**described, attn_implementation=attention))
    theirs.load_state_dict(family.weights_to_foreign(model.state_dict(), ARCHITECTURE))
    return theirs.eval()


def in_torch(module: Any) -> Answer:
    has_segments = hasattr(module.config, "type_vocab_size")

    def answer(ids: Numbers, segments: Numbers, mask: Numbers) -> Numbers:
        tensors = dict(zip(NAMES, map(torch.from_numpy, (ids, segments, mask)), strict=True))
        if not has_segments:
            del tensors["token_type_ids"]
        with torch.inference_mode():
            logits: Numbers = module(**tensors).logits.float().numpy()
            return logits

    return answer


def compiled(module: Any) -> Any:
    """Compile for all shapes, with the weights as constants; half a minute at the first batch."""
    return torch.compile(module, dynamic=True, options={"freezing": True})


def zentorch(module: Any) -> Any:
    """Compile by AMD's plugin, whose version must be that of torch: pip install zentorch deprecated.

    It writes into the weights of the module, so the module must be its own.
    """
    importlib.import_module("zentorch")
    return torch.compile(module, dynamic=True, backend="zentorch")


def ahead_of_time(module: Any, folder: Path) -> Answer:
    """Compile before the first batch, for all shapes, with the weights as constants; about two minutes.

    Raises CannotRun where the compiled code cannot be built.
    """
    example = tuple(torch.ones(4, 16, dtype=torch.int64) for _ in NAMES)
    shape = {0: torch.export.Dim("batch", min=1, max=512), 1: torch.export.Dim("tokens", min=2, max=512)}
    path = folder / f"{module.dtype}.pt2"
    freezing = {"freezing": True}
    with quiet(), torch.inference_mode():
        program = torch.export.export(_Positional(module), example, dynamic_shapes=tuple(shape for _ in NAMES))
        try:
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=freezing)
        except RuntimeError as error:
            raise CannotRun(str(error).partition("\n")[0]) from error
    loaded = torch._inductor.aoti_load_package(str(path))

    def answer(ids: Numbers, segments: Numbers, mask: Numbers) -> Numbers:
        with torch.inference_mode():
            logits: Numbers = loaded(*map(torch.from_numpy, (ids, segments, mask))).float().numpy()
            return logits

    return answer


def ctranslate2(model: Bert, threads: int, kind: str) -> Answer:
    """Convert with the settings as they come, which were the fastest; the classifier is NumPy's product.

    Raises CannotRun beside zentorch, and where it has no such products for this processor: bf16 needs Intel's library.
    """
    import ctranslate2 as ct

    if "zentorch" in sys.modules:
        raise CannotRun("its answers are wrong in a process with zentorch: --peers CTranslate2 measures it alone")
    if kind not in (known := ct.get_supported_compute_types("cpu")):
        raise CannotRun(f"it has {', '.join(sorted(known))} on this processor")
    theirs = as_transformers(model)
    theirs.bert.config.position_embedding_type = "absolute"  # its converter reads what transformers 5 has no longer
    with tempfile.TemporaryDirectory() as folder, quiet():
        theirs.bert.save_pretrained(folder)
        words = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *map(str, range(5, theirs.config.vocab_size))]
        transformers.BertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained(folder)
        converted = ct.converters.TransformersConverter(folder).convert(f"{folder}/converted")
        encoder = ct.Encoder(converted, compute_type=kind, inter_threads=1, intra_threads=threads)
    weight, bias = (tensor.detach().numpy() for tensor in (theirs.classifier.weight, theirs.classifier.bias))

    def answer(ids: Numbers, segments: Numbers, mask: Numbers) -> Numbers:
        kept = [np.ascontiguousarray(values, dtype=np.int32) for values in (ids, mask.sum(1))]  # it reads their memory
        rows, lengths = map(ct.StorageView.from_array, kept)
        pooled = encoder.forward_batch(rows, lengths, token_type_ids=segments.tolist()).pooler_output
        logits: Numbers = np.array(pooled) @ weight.T + bias
        return logits

    return answer


def dynamic_int8(model: Bert) -> Any:
    """torch's own way: weights of 8 bits, activations quantised as they come."""
    with quiet():
        return torch.ao.quantization.quantize_dynamic(as_transformers(model), {torch.nn.Linear}, dtype=torch.qint8)


def own_graph(model: Bert, folder: Path) -> Path:
    """The file that `export onnx` writes."""
    path = folder / "model.onnx"
    if not path.exists():
        write_graph(model, path, metadata={})
    return path


def own_int8(model: Bert, folder: Path) -> Path:
    """The file that `export onnx --int8` writes."""
    path = folder / "model_quantized.onnx"
    quantise_graph(own_graph(model, folder), path, reduce_range=saturates(), external=False)
    return path


def optimised(theirs: Any, model: Bert, folder: Path, *, int8: bool = False) -> Path:
    """transformers' model as torch's older exporter writes it, fused by ONNX Runtime's optimiser for transformers."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    plain, fused, small = (folder / name for name in ("theirs.onnx", "fused.onnx", "fused_int8.onnx"))
    config = model.encoder.config
    if not fused.exists():
        example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in NAMES)
        axes = {name: {0: "batch", 1: "tokens"} for name in NAMES}
        with quiet(), torch.inference_mode():
            torch.onnx.export(
                _Positional(as_transformers(model, attention="eager")),  # what the optimiser knows the pattern of
                example,
                str(plain),
                dynamo=False,
                input_names=list(NAMES),
                output_names=["logits"],
                dynamic_axes=axes,
                opset_version=17,
            )
            optimized = optimizer.optimize_model(
                str(plain),
                "bert",
                num_heads=config.heads,
                hidden_size=config.hidden,
                optimization_options=FusionOptions("bert"),
            )
        print(f"ONNX Runtime's optimiser fused {optimized.get_fused_operator_statistics()}", file=sys.stderr)
        optimized.save_model_to_file(str(fused))
    if int8 and not small.exists():
        with quiet():
            quantize_dynamic(
                fused,
                small,
                per_channel=True,
                weight_type=QuantType.QInt8,
                reduce_range=saturates(),
                extra_options={"DefaultTensorType": 1},
            )
    return small if int8 else fused


def onnx_runtime(path: Path, threads: int) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def answer(ids: Numbers, segments: Numbers, mask: Numbers) -> Numbers:
        logits: Numbers = session.run(None, dict(zip(NAMES, (ids, segments, mask), strict=True)))[0]
        return logits

    return answer


def openvino(theirs: Any, threads: int, precision: str, *, calibration: list[Batch] | None = None) -> Answer:
    """Compiled for latency, on as many threads; int8 by NNCF's own recipe for transformers where rows are given."""
    import openvino as ov

    example = {name: torch.ones(2, 8, dtype=torch.int64) for name in NAMES}
    with quiet():
        graph = ov.convert_model(_Positional(theirs), example_input=tuple(example.values()))
    for tensor, name in zip(graph.inputs, NAMES, strict=True):
        tensor.get_tensor().set_names({name})
        tensor.get_node().set_partial_shape(ov.PartialShape([-1, -1]))
    graph.validate_nodes_and_infer_types()
    if calibration is not None:
        import nncf

        rows = nncf.Dataset(calibration, lambda batch: dict(zip(NAMES, batch, strict=True)))
        with quiet():
            graph = nncf.quantize(graph, rows, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(calibration))
    hints = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = ov.Core().compile_model(graph, "CPU", hints)
    request = compiled.create_infer_request()

    def answer(ids: Numbers, segments: Numbers, mask: Numbers) -> Numbers:
        logits = request.infer(dict(zip(NAMES, (ids, segments, mask), strict=True)))
        return np.array(logits[compiled.output(0)])

    return answer


class _Positional(torch.nn.Module):
    """transformers' model with its inputs in the order of NAMES and the logits alone."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs

    def forward(self, ids: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask).logits
