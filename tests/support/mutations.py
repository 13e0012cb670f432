"""Good small files, changed at random and read again, in processes with little memory and little time.

A process reads many of them; what it was at when it died is found in its progress file.
"""

import os
import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.faults import SERVER

ROOM = 2 << 30
"""Bytes of memory that a process may take beyond what it has when it begins."""
SECONDS = 60
"""For one file; the machine may be busy."""
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8)


@dataclass(frozen=True)
class Tried:
    """Numbers of files read and refused, seeds of the `wrong` ones, and the largest memory of the process in MB."""

    read: int
    refused: int
    wrong: tuple[str, ...]
    largest: int


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes with one to three changes; the length mostly stays."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at = draw.randrange(len(changed)) if changed else 0
        size = draw.choice((1, 2, 4, 8, 16, 64))
        match draw.choice("bit bit run run number number digits cut insert swap".split()):
            case "bit":
                changed[at : at + 1] = bytes(byte ^ 1 << draw.randrange(8) for byte in changed[at : at + 1])
            case "run":
                part = changed[at : at + size]
                changed[at : at + size] = draw.choice(
                    (bytes(len(part)), b"\xff" * len(part), draw.randbytes(len(part)))
                )
            case "number":
                at -= at % draw.choice((1, 4, 8))
                number = (draw.choice(EXTREMES) + draw.choice((0, 0, -1, 1))) % 2**64
                changed[at : at + 8] = number.to_bytes(8, draw.choice(("little", "little", "big")))[: len(changed) - at]
            case "digits":  # of a text: the next number becomes another one
                places = [
                    position for position in range(at, min(len(changed), at + 200)) if chr(changed[position]).isdigit()
                ]
                if places:
                    text = draw.choice(("-1", "1e999", "NaN", "null", "[]", '"x"', *map(str, EXTREMES)))
                    changed[places[0] : places[0] + 1] = text.encode()
            case "cut":
                del changed[draw.choice((at, len(changed) - size)) :]
            case "insert":
                changed[at:at] = draw.choice(
                    (draw.randbytes(size), b'"\\ud800"', b"[" * 9999, bytes(changed[at : at + size]))
                )
            case _:
                other = draw.randrange(len(changed)) if changed else 0
                one, two = bytes(changed[at : at + size]), bytes(changed[other : other + size])
                changed[at : at + size], changed[other : other + size] = two, one
    return bytes(changed)


def read_corpus(folder: Path) -> None:
    from bertwright.corpus import shards

    # whoever forges a shard forges its checksums
    shards.Corpus._refuse_changed = lambda *_: None  # type: ignore[method-assign]
    corpus = shards.Corpus.open(folder)
    first, lengths = corpus.document_first(), corpus.sentence_lengths()
    assert first[0] == 0
    assert first[-1] == len(lengths)
    assert (np.diff(first) >= 0).all()
    assert (lengths >= 0).all()
    every = np.arange(corpus.num_sentences)
    for shard, start, length in zip(*corpus.locate(every, np.ones(len(every), np.int32)), strict=True):
        assert start >= 0
        assert len(corpus.views[shard][start : start + length]) == length
    for _ in corpus.blocks():
        pass


def read_plan(folder: Path) -> None:
    from bertwright.objectives import pair_index as plans

    plans.say = lambda _: None
    held = object.__new__(plans.Plans)
    held._path = lambda _: folder / "plan.npy"  # type: ignore[method-assign]
    held._read(0)


def read_model(folder: Path) -> None:
    from bertwright.model.bert import open_architecture
    from bertwright.model.folder import open_model

    open_architecture(open_model(str(folder)))


def read_tokenizer(folder: Path) -> None:
    from bertwright.text.wordpiece import Tokenizer

    Tokenizer.load(folder).ids(["a few words"])


def read_pickled(folder: Path) -> None:
    from bertwright.interop.huggingface import read_weights
    from bertwright.model.families.bert import BERT_FAMILY

    for tensor in BERT_FAMILY.weights_from_foreign(read_weights(folder)[0], str(folder)).values():
        tensor.isfinite().all()


class _AnyChecksum(int):
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def read_bundle(folder: Path) -> None:
    from bertwright.errors import InputError
    from bertwright.interop import sorted_table, tensor_bundle

    for module in (sorted_table, tensor_bundle):
        module.masked_crc32c = lambda _: _AnyChecksum(0)  # type: ignore[attr-defined]
    bundle = tensor_bundle.open_bundle(folder / "m.ckpt")
    refused = None
    for name in bundle.entries:
        try:
            bundle.read(name)
        except InputError as error:
            refused = error
    if refused is not None:
        raise refused


READERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "shard": (read_corpus, "shard-00000.arrow"),
    "manifest": (read_corpus, "manifest.json"),
    "plan": (read_plan, "plan.npy"),
    "safetensors": (read_model, "model.safetensors"),
    "config": (read_model, "config.json"),
    "tokenizer": (read_tokenizer, "tokenizer.json"),
    "vocabulary": (read_tokenizer, "vocab.txt"),
    "index": (read_bundle, "m.ckpt.index"),
    "data": (read_bundle, "m.ckpt.data-00000-of-00001"),
    "pickle": (read_pickled, "pytorch_model.bin"),
    "old pickle": (read_pickled, "pytorch_model.bin"),
}
"""Kind of file → its reader, and the name of the file."""


def tried(kind: str, folder: Path, seeds: range) -> Tried:
    """Read the file of a kind in `folder` (which is left changed) once for each seed."""
    progress = folder / "progress"
    progress.write_bytes(b"nothing")
    here, there = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_try, args=(there, kind, str(folder), seeds, str(progress)))
    process.start()
    there.close()
    try:
        outcome: Tried = here.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"{kind}, seed {progress.read_text()}: ended with {process.exitcode}") from None
    process.join()
    return outcome


def _try(answer: Any, kind: str, folder: str, seeds: range, progress: str) -> None:
    """In the process of its own."""
    import torch

    from bertwright.errors import InputError
    from bertwright.files import digest_note

    torch.set_num_threads(1)
    reader, name = READERS[kind]
    path = Path(folder) / name
    digest_note(path).unlink(missing_ok=True)  # whoever forges a file forges its digest
    whole = path.read_bytes()
    reader(Path(folder))  # which imports what it needs
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM,) * 2)
    handle = os.open(progress, os.O_WRONLY)
    counts, wrong = {"read": 0, "refused": 0}, []
    for seed in seeds:
        os.pwrite(handle, f"{seed:<12}".encode(), 0)
        path.unlink()  # what was read before may still be mapped
        path.write_bytes(mutated(whole, random.Random(seed)))
        signal.alarm(SECONDS)
        try:
            reader(Path(folder))
            counts["read"] += 1
        except InputError as error:
            counts["refused"] += 1
            str(error).encode()  # raises where a message cannot be printed
        except BaseException as error:
            wrong.append(f"{kind}, seed {seed}: {type(error).__name__}: {error}"[:300])
        signal.alarm(0)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    answer.send(Tried(counts["read"], counts["refused"], tuple(wrong), largest))
    answer.close()
    os._exit(0)
