"""rows of a product → rows of the next product: bias, GELU, residual, LayerNorm and quantisation, each in one pass.

A product gives sums. The functions here multiply them by the scale of their row (None: 1), add the bias, and overwrite
them. The C++ files of this folder are built once for each kind of processor and kept in the user's cache folder.
Without a C++ compiler, torch computes the same in several passes, and a message says so once.

Shapes: N rows, W columns.
"""

import ctypes
import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.console import say
from bertwright.files import cache_folder
from bertwright.jit import compiler_words, cpp_compiler

_FILES = (
    *("kernels.cpp", "modern_layer.cpp", "training_kernels.cpp", "training_attention.cpp", "muon_iteration.cpp"),
    *("rows.h", "products.h", "pairs.h", "attention.h"),
)
_SOURCES = [Path(__file__).parent / name for name in _FILES]
_FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    # These let the compiler vectorise loops. -ffast-math would also make the whole process round denormals to 0.
    *(
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fno-signed-zeros",
        "-fassociative-math",
        "-freciprocal-math",
        "-ffinite-math-only",
    ),
)
_X86_FLAGS = ("-mprefer-vector-width=512",)
HEADS = (32, 64)
"""Widths of heads that `attend` is built for; every size of the paper has 64, MiniLM's small models have 32."""
AVX_COLUMNS = 16
"""`columns()` of a library built with AVX and without AVX-512: outputs of a product at a time."""
_LONGEST_WITH_MASK = 512
"""Longest text whose window is computed with a mask of all its tokens, without a compiler."""
_QUERIES_AT_ONCE = 64
"""Number of queries of a longer text that are computed together."""
MIDDLE = 128
"""8-bit value of 0; quantised rows have values from 1 to 255."""


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [N, W] as 8-bit values around MIDDLE [N, W], and the scale of each row [N]."""
    rows = rows.contiguous()
    if (built := library()) is None:
        most = rows.abs().amax(1)
        scales = torch.where(most > 0, most / 127, 1.0)
        return (rows / scales[:, None] + (MIDDLE + 0.5)).to(torch.uint8), scales
    narrow, scales = torch.empty(rows.shape, dtype=torch.uint8), torch.empty(len(rows), dtype=torch.float32)
    built.quantise(at(rows), at(narrow), at(scales), *sizes(rows))
    return narrow, scales


def finish(sums: Tensor, scales: Tensor | None, bias: Tensor) -> Tensor:
    """Return the output of the linear layer: sums times scales plus bias [N, W]."""
    if (built := library()) is None:
        return _finished(sums, scales, bias)
    built.finish(at(sums), at(scales), at(bias), *sizes(sums))
    return sums


def activate(sums: Tensor, scales: Tensor | None, bias: Tensor, *, approximate: str) -> Tensor:
    """Return GELU of the linear layer's output [N, W]."""
    if (built := library()) is None:
        return F.gelu(_finished(sums, scales, bias), approximate=approximate)
    count, width, threads = sizes(sums)
    built.activate(at(sums), at(scales), at(bias), None, None, count, width, approximate == "tanh", threads)
    return sums


def activate_quantise(sums: Tensor, scales: Tensor | None, bias: Tensor, *, approximate: str) -> tuple[Tensor, Tensor]:
    """Return GELU of the linear layer's output, quantised as `quantise` does."""
    if (built := library()) is None:
        return quantise(activate(sums, scales, bias, approximate=approximate))
    narrow, steps = torch.empty(sums.shape, dtype=torch.uint8), torch.empty(len(sums), dtype=torch.float32)
    count, width, threads = sizes(sums)
    with_tanh = approximate == "tanh"
    built.activate(at(sums), at(scales), at(bias), at(narrow), at(steps), count, width, with_tanh, threads)
    return narrow, steps


def add_norm(sums: Tensor, scales: Tensor | None, bias: Tensor, before: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """Return LayerNorm of `before` [N, W] plus the linear layer's output: [N, W]."""
    if (built := library()) is None:
        normed: Tensor = norm(before + _finished(sums, scales, bias))
        return normed
    before = before.contiguous()
    pointers = map(at, (sums, scales, bias, before, norm.weight, norm.bias))
    built.add_norm(*pointers, ctypes.c_float(norm.eps), *sizes(sums))
    return sums


class Window(NamedTuple):
    """The tokens that a token attends to: those at most `radius` positions away.

    positions [N], query_positions [M]: positions of all rows and of the queries in their texts, int64.
    """

    radius: int
    positions: Tensor
    query_positions: Tensor


def attend(
    query: Tensor,
    key_value: Tensor,
    begins: Tensor,
    query_begins: Tensor,
    *,
    heads: int,
    half: bool = False,
    window: Window | None = None,
) -> Tensor:
    """Return the attention [M, D] of the rows `query` [M, D] to `key_value` [N, 2D] of the same text.

    begins, query_begins: first row of each text, and the number of rows at the end [B + 1], int64.
    half: True to multiply in bf16 where the processor can; sums stay fp32.
    window: rows of the text that a query attends to; None for all.
    """
    built, head = library(), query.shape[1] // heads
    if built is None or head not in HEADS:
        return _attended(query, key_value, begins, query_begins, heads, window)
    out = torch.empty(query.shape, dtype=torch.float32)
    threads = torch.get_num_threads() if len(key_value) * query.shape[1] > 1 << 14 else 1
    radius, *positions = window or (0, None, None)
    numbers = map(ctypes.c_int64, (radius, len(begins) - 1, heads, head))
    pointers = map(at, (query, key_value, out, begins, query_begins, *positions))
    built.attend(*pointers, *numbers, ctypes.c_int(half), ctypes.c_int(threads))
    return out


def _attended(
    query: Tensor, key_value: Tensor, begins: Tensor, query_begins: Tensor, heads: int, window: Window | None
) -> Tensor:
    """Compute `attend` in torch, with the rows of each text filled up to those of the longest."""
    if window is not None and len(query) and int(begins.diff().max()) > _LONGEST_WITH_MASK:
        return _attended_in_parts(query, key_value, begins, query_begins, heads, window)
    chosen, kept = _mask_of(query_begins), _mask_of(begins)  # [B, Q], [B, T]
    queries, keys = query.new_zeros(*chosen.shape, query.shape[1]), query.new_zeros(*kept.shape, key_value.shape[1])
    queries[chosen], keys[kept] = query, key_value
    parts = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (queries, *keys.chunk(2, dim=-1))]
    keep = kept[:, None, None]  # [B, 1, 1, T]
    if window is not None:
        at_query, at_key = (begins.new_zeros(mask.shape) for mask in (chosen, kept))
        at_query[chosen], at_key[kept] = window.query_positions, window.positions
        keep = keep & ((at_query[:, None, :, None] - at_key[:, None, None]).abs() <= window.radius)  # [B, 1, Q, T]
    context = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=keep)
    return context.transpose(1, 2).flatten(2)[chosen]


def _attended_in_parts(
    query: Tensor, key_value: Tensor, begins: Tensor, query_begins: Tensor, heads: int, window: Window
) -> Tensor:
    """Compute `attend` in torch for long texts, some queries of a text at a time and the keys that they reach."""
    out = torch.empty_like(query)
    for text in range(len(begins) - 1):
        keys = slice(int(begins[text]), int(begins[text + 1]))
        for begin in range(int(query_begins[text]), int(query_begins[text + 1]), _QUERIES_AT_ONCE):
            rows = slice(begin, min(begin + _QUERIES_AT_ONCE, int(query_begins[text + 1])))
            at_query, at_key = window.query_positions[rows], window.positions[keys]
            ends = torch.stack((at_query.min() - window.radius, at_query.max() + window.radius + 1))
            first, last = (keys.start + torch.searchsorted(at_key, ends)).tolist()
            keep = (at_query[:, None] - window.positions[first:last]).abs() <= window.radius
            parts = [
                part.unflatten(1, (heads, -1)).transpose(0, 1)
                for part in (query[rows], *key_value[first:last].chunk(2, dim=1))
            ]
            context = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=keep)
            out[rows] = context.transpose(0, 1).flatten(1)
    return out


def gate_sums(sums: Tensor, scales: Tensor | None, bias: Tensor, *, approximate: str) -> Tensor:
    """Return GELU of one half of the linear layer's output [N, 2I] times the other half: [N, I]."""
    if (built := library()) is None:
        values, gates = _finished(sums, scales, bias).chunk(2, dim=1)
        return F.gelu(values, approximate=approximate) * gates
    out = sums.new_empty(len(sums), sums.shape[1] // 2)
    with_tanh = ctypes.c_int(approximate == "tanh")
    built.gate_sums(at(sums), at(scales), at(bias), at(out), with_tanh, *sizes(out))
    return out


def _mask_of(begins: Tensor) -> Tensor:
    """Return the mask [B, T] of texts whose rows begin at `begins` [B + 1]; T is the longest."""
    lengths = begins.diff()
    return torch.arange(int(lengths.max()) if len(lengths) else 0) < lengths[:, None]


@functools.cache
def library() -> Any:
    """Return the compiled functions; None where they cannot be built on this machine."""
    if (compiler := cpp_compiler()) is None:
        say("there is no C++ compiler here (c++): bias, GELU, LayerNorm and other steps take several passes each")
        return None
    command = [*compiler_words(compiler), *_FLAGS, *(_X86_FLAGS if _has_wide_vectors() else ())]
    key = _digest(repr((command, [source.read_bytes() for source in _SOURCES], _processor())).encode())
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        # The digest of the file is in its name, because loading a damaged library ends the process.
        kept = [path for path in folder.glob(f"rows-{key}-*.so") if path.stem.endswith(_digest(path.read_bytes()))]
        return ctypes.CDLL(str(kept[0] if kept else _build(command, folder, key)))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = ((getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()[-1]
        say(f"the compiled steps could not be built ({reason}): they take several passes each")
        return None


def has_half_products() -> bool:
    """Return True where the library multiplies in bf16. With AMX the products in bf16 are left to torch."""
    if torch.cpu._is_amx_tile_supported() or (built := library()) is None:
        return False
    return bool(built.multiplies_halves())


def _build(command: Sequence[str], folder: Path, key: str) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        built = Path(temporary) / "kernels.so"
        sources = [str(source) for source in _SOURCES if source.suffix == ".cpp"]
        command = [*command, *sources, "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True, encoding="utf-8", errors="replace")
        return built.replace(folder / f"rows-{key}-{_digest(built.read_bytes())}.so")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _finished(sums: Tensor, scales: Tensor | None, bias: Tensor) -> Tensor:
    return (sums if scales is None else sums * scales[:, None]) + bias


def at(tensor: Tensor | None) -> ctypes.c_void_p:
    """Return the address of a tensor's numbers; that of None is null."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def sizes(rows: Tensor) -> tuple[ctypes.c_int64, ctypes.c_int64, ctypes.c_int]:
    """Return rows, columns and threads; several threads only where there is enough work."""
    threads = torch.get_num_threads() if rows.numel() > 1 << 15 else 1
    return ctypes.c_int64(rows.shape[0]), ctypes.c_int64(rows.shape[1]), ctypes.c_int(threads)


def _has_wide_vectors() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _processor() -> str:
    """Return the processor's features, on which -march=native depends; several machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return torch.backends.cpu.get_cpu_capability()
