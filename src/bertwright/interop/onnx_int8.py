"""ONNX graph → the same with weights of 8 bits; activations are quantised as they come.

Each output channel has its own scale: as fast as one scale a matrix, and a third nearer to fp32 on our own models.
"""

import platform
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from bertwright.interop.onnx_graph import quiet

_CPUINFO = Path("/proc/cpuinfo")


def quantise(source: Path, target: Path, *, reduce_range: bool, outside: bool) -> None:
    """Write `source` with int8 weights as `target`; 7 bits of them with `reduce_range`.

    `outside` puts the weights into a file of their own beside `target`.
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
            use_external_data_format=outside,
        )


def saturates() -> bool:
    """Whether this processor adds pairs of products of 8 bits up in 16 bits, where the largest overflow (x86, no VNNI).

    Where the flags of an x86 processor cannot be read, it is taken for one that does.
    """
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return False
    flags = _CPUINFO.read_text("utf-8", errors="replace").split() if _CPUINFO.is_file() else []
    return not {"avx512_vnni", "avx_vnni"}.intersection(flags)


def _transpose_weights(graph: onnx.GraphProto) -> None:
    """Store what is a transposed weight in the graph as a weight of its own: only products with those are quantised.

    It is the tied matrix of a masked LM, which stands there once for both of its uses.
    """
    weights = {weight.name: weight for weight in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        turned = numpy_helper.to_array(weights[node.input[0]]).T
        graph.initializer.append(numpy_helper.from_array(turned, node.output[0]))
        graph.node.remove(node)
    # The quantiser transposes some weights in place, and then stumbles over the shapes that are noted for them.
    shapes = [shape for shape in graph.value_info if shape.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(shapes)
