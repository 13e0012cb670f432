"""texts → rows; a PyTorch model and an ONNX graph of it → how far apart their answers are.

Shapes: N rows, B batch, C choices, T tokens, D the last axis of an output.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.interop.onnx_graph import INPUTS
from bertwright.model.bert import Bert
from bertwright.tasks.classification.encoding import Encoded, encode
from bertwright.tasks.classification.model import TextBatch, padded
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.decompress import decoded_lines, read_lines

MOST_TEXTS = 256
"""Texts of a file that are compared, from the first on."""

TEXTS = (
    "Yes.",
    "The ferry is late again.",
    "Who has taken the green umbrella from the hall?",
    "Nobody reads the sign at the gate, and so everybody knocks at the wrong door.",
    "It rained for nine days, and on the tenth the cellar was a pond with two ducks on it.",
    "Prices rose by 3.2 percent in March, after 2.9 percent in February and 2.4 percent in January.",
    "She played the slow movement twice: once for the judges, who listened politely, and once, later, for herself.",
    "No refund!",
    "I would not call it a bad film, only a long one with a short film hidden somewhere in its middle.",
    "Water boils at a lower temperature on a mountain, which is why beans take longer to cook up there.",
    "The committee postponed its decision.",
    "Turn left at the mill, follow the stream for about 400 metres, and wait where the path forks.",
    "A good knife, a heavy pan and a little patience are enough for most of the recipes in this book.",
    "What a wonderful, wonderful evening!",
    "The younger sister became a surveyor; the elder one, who had wanted to, kept the accounts of the farm.",
    "Error 17: the file could not be opened.",
    "After the harvest the storks gather on the wet meadows south of the village and leave within a single night.",
    "Our parcel arrived, but the box was torn, the manual was missing and one of the three lamps did not work.",
    "Is the library open on Sundays?",
    "서울에서 부산까지 기차로 세 시간쯤 걸립니다.",
    "The minister, asked about the new bridge, said that it would be built where the old one stands, or not at all.",
    "Light from the nearest star beyond the sun is more than four years old when it reaches us.",
    "Thanks, see you on Thursday.",
    "He counted the steps down to the harbour, lost count, went back up and decided that there were too many.",
    "Disappointing.",
    "The translation is faithful, but it walks where the original dances.",
    "Please send the invoice to the address below; the order number is 4471-B.",
    "Nothing in this drawer belongs to me.",
    "The trial showed no difference between the two groups after twelve weeks (p = 0.41).",
    "When the band came on, half of the audience had already gone home, and the other half was asleep.",
    "How do I change the name of a branch that others have checked out?",
    "Honest, funny and just a little sad.",
    "The north wall is damp because the gutter above it leaks, not because the ground is wet.",
    "They signed a contract for three seasons, with an option for a fourth.",
    "Cats sleep.",
    "Our guide spoke four languages, knew every bird by its call, and never once looked at the map.",
    "The engine starts, runs for ten seconds and stops, whether it is warm or cold.",
    "I have read it twice and still do not know who opened the window.",
    "Trains between the two cities are cancelled until further notice.",
    "It is the best bread in town, if you get there before eight.",
)
"""Sentences of our own, short and long, for where no text is given."""


ANSWERS, SETS = "equal answers", "equal sets of labels"


@dataclass(frozen=True)
class Agreement:
    """How near one output comes to PyTorch's, over all real positions."""

    largest_difference: float  # absolute, as is the mean
    mean_difference: float
    largest_value: float  # of PyTorch's, without the sign
    agreement: float  # what `measure` says; 1 is perfect
    measure: str
    count: int  # of answers, vectors or scores

    @property
    def text(self) -> str:
        """In words."""
        if self.measure in (ANSWERS, SETS):
            return f"{self.agreement:.2%} of {self.count:,} {self.measure.removeprefix('equal ')} equal"
        return f"{self.measure} {self.agreement:.4f} over {self.count:,}"


def texts_of(path: Path | None) -> tuple[list[str], int]:
    """The first texts of a file with one on every line, or the built-in ones; and how many there are."""
    if path is None:
        return list(TEXTS), len(TEXTS)
    found: list[str] = []
    there = 0
    for _, line in decoded_lines(path, read_lines(path)):
        if text := line.strip():
            there += 1
            if len(found) < MOST_TEXTS:
                found.append(text)
    if not found:
        raise InputError(f"{path}: holds no line of text; the exported model is compared with PyTorch on texts")
    return found, there


def rows_of(model: Bert, tokenizer: BaseTokenizer, texts: Sequence[str]) -> tuple[Encoded, int]:
    """Rows of each text, of each with the next one, and of all joined, cut at several lengths; how many are not joined.

    The longest row has as many tokens as the model has positions.
    """
    config = model.encoder.config
    most = config.max_positions
    parts = [encode(tokenizer, texts, max_length=most)]
    if config.num_segments > 1:
        parts.append(encode(tokenizer, texts, [*texts[1:], texts[0]], max_length=most))
    apart = sum(map(len, parts))
    # Pieces are joined, of which no text has more than fit, and not the texts, one of which may be a book.
    pieces = [piece for ids in parts[0].ids for piece in ids[1:-1]]
    lengths = [length for halvings in range(4) if (length := most >> halvings) == most or length >= 16]
    begin, end = tokenizer.begin_id, tokenizer.end_id
    joined = [
        np.array([begin, *itertools.islice(itertools.cycle(pieces), length - 2), end], np.int32) for length in lengths
    ]
    ids = (*itertools.chain.from_iterable(part.ids for part in parts), *joined)
    first = np.concatenate([*(part.first for part in parts), np.array([len(row) for row in joined], np.int32)])
    return Encoded(ids=ids, first=first, cut=np.zeros(len(ids), dtype=np.bool_)), apart


def batches_of(model: Bert, rows: Encoded, apart: int) -> Iterator[TextBatch]:
    """Batches of 1, 3 and 8 rows in their order, and so of unlike lengths; joined rows by two.

    For a model of choices, batches of 1, 3 and 8 times 2 to 4 choices.
    """
    choices = model.architecture == "BertForMultipleChoice"
    pad_id = model.encoder.config.pad_id
    sizes, widths = itertools.cycle((1, 3, 8)), itertools.cycle((2, 3, 4) if choices else (1,))
    begin = 0
    while begin < apart:
        size, width = min(next(sizes), apart - begin), next(widths)
        chosen = [(begin + row + choice) % apart for row in range(size) for choice in range(width)]
        yield _shaped(padded(rows, chosen, pad_id=pad_id), width if choices else None)
        begin += size
    for joined in range(apart, len(rows), 2):
        chosen = [joined, joined + 1 if joined + 1 < len(rows) else 0]
        yield _shaped(padded(rows, chosen, pad_id=pad_id), 2 if choices else None)


def compare(
    model: Bert, session: Any, batches: Iterable[TextBatch], *, is_multilabel: bool = False
) -> dict[str, Agreement]:
    """Each output of an ONNX Runtime session beside that of `model`, over all batches; padding is left out.

    is_multilabel: an answer is all the labels that apply.
    """
    tallies: dict[str, _Tally] = {}
    for rows in batches:
        ids, segments = rows.ids.long(), rows.segments.long()
        with torch.inference_mode():
            wanted = model(ids, segments, rows.mask)
        found = session.run(list(wanted), feed(rows))
        mask = rows.mask.numpy()
        for (name, values), other in zip(wanted.items(), found, strict=True):
            tally = tallies.setdefault(name, _Tally(_measure(model.architecture, values.shape, is_multilabel)))
            tally.add(values.numpy(), other, mask if _by_token(model.architecture, name) else None)
    return {name: tally.result() for name, tally in tallies.items()}


def feed(rows: TextBatch) -> dict[str, NDArray[np.int64]]:
    """A batch as an ONNX Runtime session takes it."""
    return {
        name: values.long().numpy() for name, values in zip(INPUTS, (rows.ids, rows.mask, rows.segments), strict=True)
    }


class _Tally:
    """What is known of one output after some batches."""

    def __init__(self, measure: str) -> None:
        self.measure = measure
        self.largest = self.total = self.value = 0.0
        self.numbers = 0
        self.answers: list[NDArray[Any]] = []  # per row or token: equal or not, a cosine, or the two scores

    def add(self, wanted: NDArray[np.float32], found: NDArray[np.float32], mask: NDArray[np.bool_] | None) -> None:
        """Outputs of a batch; with a mask [B, T], of tokens."""
        real = slice(None) if mask is None else mask
        difference = np.abs(wanted[real] - found[real])
        self.largest = float(np.maximum(self.largest, difference.max()))  # unlike max(), keeps a NaN
        self.value = float(np.maximum(self.value, np.abs(wanted[real]).max()))
        self.total += float(difference.sum(dtype=np.float64))
        self.numbers += difference.size
        self.answers.append(self._answers(wanted, found, real))

    def _answers(self, wanted: NDArray[np.float32], found: NDArray[np.float32], real: Any) -> NDArray[Any]:
        match self.measure:
            case "cosine":
                one, other = wanted[real], found[real]
                norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
                cosines: NDArray[Any] = (one * other).sum(-1) / norms
                return cosines
            case "correlation":
                return np.concatenate([wanted[real], found[real]], axis=-1)  # [rows or tokens, 2]
            case _ if self.measure == SETS:
                return np.asarray(((wanted[real] > 0) == (found[real] > 0)).all(-1))
            case _ if wanted.ndim == 2 and not isinstance(real, slice):  # start and end: one a row
                logits = [np.where(real, values, -np.inf) for values in (wanted, found)]
                return np.asarray(logits[0].argmax(-1) == logits[1].argmax(-1))
            case _:
                return np.asarray(wanted[real].argmax(-1) == found[real].argmax(-1))

    def result(self) -> Agreement:
        """Over all batches."""
        answers = np.concatenate(self.answers)
        share = np.corrcoef(answers.T)[0, 1] if self.measure == "correlation" else answers.mean(dtype=np.float64)
        mean = self.total / self.numbers
        return Agreement(self.largest, mean, self.value, float(share), self.measure, len(answers))


def _measure(architecture: str, shape: Sequence[int], is_multilabel: bool) -> str:
    if architecture == "BertModel":
        return "cosine"
    if is_multilabel:
        return SETS
    return "correlation" if shape[-1] == 1 else ANSWERS  # one output is a score, which is no choice


def _by_token(architecture: str, output: str) -> bool:
    """Whether an output is [B, T, …], with padding in it."""
    if output == "logits":
        return architecture in ("BertForMaskedLM", "BertForTokenClassification")
    return output in ("last_hidden_state", "prediction_logits", "start_logits", "end_logits")


def _shaped(rows: TextBatch, choices: int | None) -> TextBatch:
    """[B·C, T] → [B, C, T] where there are choices."""
    if choices is None:
        return rows
    ids, segments, mask = (part.unflatten(0, (-1, choices)) for part in (rows.ids, rows.segments, rows.mask))
    return TextBatch(ids, segments, mask)
