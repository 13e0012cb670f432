"""start model + training pairs → hard negatives: texts with a high cosine that are no positives, found before step 0.

A text that is nearly as close as the positive may be a positive without a label. So the texts above the cosine of the
positive minus a margin are left out. Moreira et al. 2024 (NV-Retriever) compare such margins with percentages of that
cosine.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import Damaged, InputError, shown
from bertwright.files import MOST_JSON, json_bytes, read_json, write_json
from bertwright.finetuning.prepare import Prepared
from bertwright.finetuning.schedule import ScheduledSettings
from bertwright.finetuning.setup import initial_model
from bertwright.search.exact import QUERIES, BestDocuments
from bertwright.tables.bad_rows import is_blank
from bertwright.tasks.beir import corpus_file, documents_in_blocks
from bertwright.tasks.embedding.measure import roles_of
from bertwright.tasks.embedding.metrics import rounded_cosines, unit
from bertwright.tasks.embedding.model import text_vectors
from bertwright.tasks.embedding.pairs import TextPairs, equal_key, with_negatives
from bertwright.tasks.embedding.read import folder_layout
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.tasks.embedding.task import encode_side, with_more_seconds
from bertwright.training.distributed import Ranks
from bertwright.training.hardware import resolve_device
from bertwright.training.run_folder import RunFolder

MINED: Final = "mined.json"
"""File of the run folder with the hard negatives of each pair, as numbers of the texts that were searched."""
_REMEDY: Final = "Put the file back from a copy, or remove it: then a resumed run mines the negatives again"
_MOST: Final = MOST_JSON // 20
"""Largest number of negatives, so that their numbers can be read again: a line of the file has at most 20 bytes."""
_BLOCK: Final = 4096
"""Number of texts whose vectors are in memory at a time."""

Blocks = Callable[[], Iterator[list[str]]]
"""Function that yields the texts that are searched, some at a time, in the same order at each call."""


def with_mined(run: RunFolder, settings: ScheduledSettings, prepared: Prepared, data: Path, ranks: Ranks) -> Prepared:
    """Return the bound task with mined hard negatives where its task has the setting `mine`; else unchanged.

    They are searched by the model with which the first seed starts, among the second texts and hard negatives of the
    training data; in the layout of BEIR among all documents. They are computed once and stored in the run folder, so
    that a resumed run has the same. Raises InputError where there is none, Damaged for a stored file that was changed,
    or that belongs to other texts.
    """
    task = prepared.bound.task
    if not isinstance(task, VectorTask) or task.mine is None:
        return prepared
    pairs: TextPairs = prepared.bound.train[0]
    blocks = _blocks_of(task, pairs, data)
    path = run.folder / MINED
    if len(pairs) * task.mine > _MOST:
        raise InputError(
            f"--task-setting mine={task.mine}: {len(pairs):,} pairs would have more than {_MOST:,} negatives in all; "
            f"set mine to at most {_MOST // len(pairs)}, or give fewer pairs"
        )
    if ranks.is_main and not path.exists():
        digest = hashlib.sha256()
        mined = _mine(settings, prepared, _noting(blocks, digest.update)) | {"searched": digest.hexdigest()}
        mined |= {"model": _model_digest(settings, prepared)}
        write_json(path, mined | {"sha256": _content_digest(mined)})
    ranks.wait_for_main()
    mined = _checked(path, ranks.broadcast(_stored(path) if ranks.is_main else None))
    if mined.get("model") != _model_digest(settings, prepared):
        raise Damaged(f"{path}: its negatives were mined by another model, or with other settings. {_REMEDY}")
    digest = hashlib.sha256()
    texts = _texts_of(mined["negatives"], _noting(blocks, digest.update))
    if digest.hexdigest() != mined["searched"]:
        raise Damaged(f"{path}: its negatives were mined among other texts than those of {data}. {_REMEDY}")
    counts = mined["counts"]
    run.note(mined=counts)
    say(
        f"{pairs.source}: {counts['negatives']:,} hard negatives mined for {len(pairs):,} pairs among "
        f"{counts['texts']:,} texts; {counts['left_out']:,} times a text was too close: its cosine is above that "
        f"of the positive minus {task.margin:g}"
    )
    if not counts["negatives"]:
        raise InputError(
            f"--task-setting mine={task.mine}: found no text below the margin of {task.margin:g}; set a smaller "
            "mine_margin, or leave mine out"
        )
    pairs = with_negatives(pairs, [[texts[number] for number in row] for row in mined["negatives"]])
    return replace(prepared, bound=with_more_seconds(prepared.bound, pairs, prepared.tokenizer))


def _model_digest(settings: ScheduledSettings, prepared: Prepared) -> str:
    """Return the sha256 of the model and the settings that decide the vectors and the choice among them."""
    task = prepared.bound.task
    vectors = task.vectors.model_dump(mode="json")
    parts = [prepared.digests["weights"], prepared.tokenizer.hash, prepared.bound.max_length, settings.first_seed]
    return hashlib.sha256(json_bytes([*parts, task.mine, task.margin, vectors])).hexdigest()


def _blocks_of(task: VectorTask, pairs: TextPairs, data: Path) -> Blocks:
    if folder_layout(task, data) != "beir":
        return lambda: (list(pairs.seconds[at : at + _BLOCK]) for at in range(0, len(pairs.seconds), _BLOCK))
    corpus = corpus_file(data)
    return lambda: (texts for _, texts in documents_in_blocks(corpus, _BLOCK))


def _noting(blocks: Blocks, note: Callable[[bytes], object]) -> Blocks:
    """Return the same blocks; as they are read, `note` gets the bytes of each text, with their number before them."""

    def noted() -> Iterator[list[str]]:
        for block in blocks():
            for text in block:
                encoded = text.encode()
                note(b"%d:%b" % (len(encoded), encoded))
            yield block

    return noted


def _content_digest(mined: Mapping[str, Any]) -> str:
    """Return the sha256 of the entries of the stored file but its last, "sha256"."""
    return hashlib.sha256(json_bytes(mined)).hexdigest()


def _stored(path: Path) -> Any:
    """Return the content of the stored file; the message of the error where it is no JSON."""
    try:
        return read_json(path)
    except InputError as error:
        return str(error)


def _checked(path: Path, stored: Any) -> dict[str, Any]:
    """Return the entries of the stored file. Raises Damaged where it is not as it was written, on every rank."""
    if isinstance(stored, str):
        raise Damaged(f"{stored}. {_REMEDY}")
    noted = stored.get("sha256") if isinstance(stored, dict) else None
    content = {name: value for name, value in stored.items() if name != "sha256"} if noted else {}
    digest = _content_digest(content)
    if noted != digest:
        raise Damaged(
            f"{path}: expected the sha256 of its content, {digest[:12]}…, as its entry sha256, got {shown(noted)!r}: "
            f"it was changed or damaged after it was written. {_REMEDY}"
        )
    return content


def _mine(settings: ScheduledSettings, prepared: Prepared, blocks: Blocks) -> dict[str, Any]:
    """Return {"counts": …, "negatives": numbers of the hard negatives of each pair, the closest first}."""
    bound = prepared.bound
    task, pairs = bound.task, bound.train[0]
    model: Any = initial_model(settings, bound, prepared.saved, settings.first_seed)
    model = model.to(resolve_device(settings.device))
    firsts, seconds = bound.kind.logits(model, bound.train[1])
    known = {text: number for number, text in enumerate(pairs.seconds)}
    role = roles_of(pairs)[1]

    def vectors_of(texts: Sequence[str]) -> NDArray[np.float32]:
        if known.keys() >= {*texts}:
            chosen: NDArray[np.float32] = seconds[[known[text] for text in texts]]
            return chosen
        side, _ = encode_side(task, prepared.tokenizer, texts, role, max_length=bound.max_length)
        return text_vectors(model, side)

    return mined_negatives(pairs, firsts, seconds, vectors_of, blocks, count=task.mine, margin=task.margin)


def mined_negatives(
    pairs: TextPairs,
    firsts: NDArray[np.float32],
    seconds: NDArray[np.float32],
    vectors_of: Callable[[Sequence[str]], NDArray[np.float32]],
    blocks: Blocks,
    *,
    count: int,
    margin: float,
) -> dict[str, Any]:
    """Return the numbers of the `count` closest texts of each pair that are no positives, and counts for messages.

    These texts are no negatives of a pair:

    - the anchor, and texts that are paired with it;
    - texts that are hard negatives of the pair already;
    - texts that equal an earlier one;
    - texts whose cosine is above that of the positive minus `margin`.

    Of equal cosines the earlier text comes first.

    firsts      [A, D] vectors of the first texts
    seconds     [P, D] vectors of the second texts
    vectors_of  returns the vectors [N, D] of texts that are searched
    """
    limits = np.round(rounded_cosines(firsts[pairs.anchors], seconds[pairs.positives]) - margin, 6)
    anchors = unit(firsts).astype(np.float64)
    rows_by_key = _rows_by_key(pairs)
    best, nothing = BestDocuments(len(pairs), count), np.full(QUERIES, -1)
    seen: set[str] = set()
    done = left_out = 0
    for texts in blocks():
        numbers = np.arange(done, done + len(texts))
        done += len(texts)
        first_at: dict[str, int] = {}
        for at, text in enumerate(texts):
            if not is_blank(text) and (key := equal_key(text)) not in seen:
                first_at.setdefault(key, at)
        seen |= first_at.keys()
        new = list(first_at.values())
        if not new:
            continue
        vectors = unit(vectors_of([texts[at] for at in new])).astype(np.float64).T
        forbidden = [(row, column) for column, key in enumerate(first_at) for row in rows_by_key.get(key, ())]
        rows, columns = np.array(sorted(forbidden), dtype=np.int64).reshape(-1, 2).T
        for first in range(0, len(pairs), QUERIES):
            part = slice(first, first + QUERIES)
            cosines = np.round(anchors[pairs.anchors[part]] @ vectors, 6)
            begin, end = np.searchsorted(rows, (first, first + len(cosines)))
            cosines[rows[begin:end] - first, columns[begin:end]] = -np.inf
            is_close = cosines > limits[part, None]
            left_out += int(is_close.sum())
            cosines[is_close] = -np.inf
            best.add(first, cosines, numbers[new], nothing[: len(cosines)])
    negatives = [numbers[np.isfinite(cosines)].tolist() for numbers, cosines in best.best()]
    counts = {"texts": len(seen), "negatives": sum(map(len, negatives)), "left_out": left_out}
    return {"counts": counts, "negatives": negatives}


def _rows_by_key(pairs: TextPairs) -> Mapping[str, Sequence[int]]:
    """Return key of a text → numbers of the pairs of which it is no hard negative, or is one already."""
    keys = [equal_key(text) for text in pairs.seconds]
    anchors = [equal_key(text) for text in pairs.firsts]
    positives: defaultdict[str, set[str]] = defaultdict(set)
    for anchor, positive in zip(pairs.anchors, pairs.positives, strict=True):
        positives[anchors[anchor]].add(keys[positive])
        positives[keys[positive]].add(anchors[anchor])  # a match in the data, whichever text is the first
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, anchor in enumerate(pairs.anchors):
        negatives = {keys[number] for number in pairs.negatives[row]}
        for key in {anchors[anchor]} | positives[anchors[anchor]] | negatives:
            rows[key].append(row)
    return rows


def _texts_of(negatives: Sequence[Sequence[int]], blocks: Blocks) -> dict[int, str]:
    """Return number → text of those that were mined; the texts that were searched are read again."""
    wanted = {number for row in negatives for number in row}
    texts: dict[int, str] = {}
    done = 0
    for block in blocks():
        texts |= {number: text for number, text in enumerate(block, start=done) if number in wanted}
        done += len(block)
    return texts
