"""texts → rows → the outputs of a PyTorch model and of its ONNX graph → their agreement.

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
from bertwright.interop.onnx_graph import INPUTS, GraphModel
from bertwright.model.families.electra import DISCRIMINATOR
from bertwright.tasks.classification.encoding import Encoded, encode
from bertwright.tasks.classification.model import TextBatch, padded
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.decompress import decoded_lines, read_lines

MOST_TEXTS = 256
"""Largest number of texts of a file that are compared, from the first on."""

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
"""Built-in texts, short and long, written for this purpose."""

ANSWERS, SETS, REPLACED = "equal answers", "equal sets of labels", "equal replaced tokens"


@dataclass(frozen=True)
class Agreement:
    """Agreement of one output with PyTorch's, over all positions but padding.

    largest_difference  largest absolute difference
    mean_difference     mean absolute difference
    largest_value       largest absolute value of PyTorch's output
    agreement           value of `measure`, at most 1
    measure             "equal answers", "equal sets of labels", "cosine" or "correlation"
    count               number of answers, vectors or scores
    """

    largest_difference: float
    mean_difference: float
    largest_value: float
    agreement: float
    measure: str
    count: int

    @property
    def text(self) -> str:
        """The agreement in words."""
        if self.measure in (ANSWERS, SETS, REPLACED):
            return f"{self.agreement:.2%} of {self.count:,} {self.measure.removeprefix('equal ')} equal"
        return f"{self.measure} {self.agreement:.4f} over {self.count:,}"


def comparison_texts(path: Path | None) -> tuple[list[str], int]:
    """Return the first MOST_TEXTS texts of a file with a text on each line, and the number of its texts.

    Without a file these are the built-in texts. Raises InputError for a file without a text.
    """
    if path is None:
        return list(TEXTS), len(TEXTS)
    texts: list[str] = []
    num_texts = 0
    for _, line in decoded_lines(path, read_lines(path)):
        if text := line.strip():
            num_texts += 1
            if len(texts) < MOST_TEXTS:
                texts.append(text)
    if not texts:
        raise InputError(f"{path}: holds no line of text; the exported model is compared with PyTorch on texts")
    return texts, num_texts


def comparison_rows(model: GraphModel, tokenizer: BaseTokenizer, texts: Sequence[str]) -> tuple[Encoded, int]:
    """Return rows of each text, of each pair of neighbours, and of all texts joined, and the number of unjoined rows.

    The joined rows are cut at several lengths. The longest one has as many tokens as the model has positions.
    """
    config = model.encoder.config
    positions = config.max_positions
    parts = [encode(tokenizer, texts, max_length=positions)]
    if config.num_segments > 1:
        parts.append(encode(tokenizer, texts, [*texts[1:], texts[0]], max_length=positions))
    num_separate = sum(map(len, parts))
    # The encoded pieces are joined, which are cut already, and not the texts: a text may be a book.
    pieces = [piece for ids in parts[0].ids for piece in ids[1:-1]]
    lengths = [length for halvings in range(4) if (length := positions >> halvings) == positions or length >= 16]
    begin, end = tokenizer.begin_id, tokenizer.end_id
    joined = [
        np.array([begin, *itertools.islice(itertools.cycle(pieces), length - 2), end], np.int32) for length in lengths
    ]
    ids = (*itertools.chain.from_iterable(part.ids for part in parts), *joined)
    first = np.concatenate([*(part.first for part in parts), np.array([len(row) for row in joined], np.int32)])
    return Encoded(ids=ids, first=first, cut=np.zeros(len(ids), dtype=np.bool_)), num_separate


def comparison_batches(model: GraphModel, rows: Encoded, num_separate: int) -> Iterator[TextBatch]:
    """Yield batches of 1, 3 and 8 rows in their order, so that lengths differ; joined rows in batches of two.

    For a model of choices the batches are 1, 3 and 8 examples of 2 to 4 choices.
    """
    choices = model.architecture == "BertForMultipleChoice"
    pad_id = model.encoder.config.pad_id
    sizes, widths = itertools.cycle((1, 3, 8)), itertools.cycle((2, 3, 4) if choices else (1,))
    begin = 0
    while begin < num_separate:
        size, width = min(next(sizes), num_separate - begin), next(widths)
        chosen = [(begin + row + choice) % num_separate for row in range(size) for choice in range(width)]
        yield _shaped(padded(rows, chosen, pad_id=pad_id), width if choices else None)
        begin += size
    for joined in range(num_separate, len(rows), 2):
        chosen = [joined, joined + 1 if joined + 1 < len(rows) else 0]
        yield _shaped(padded(rows, chosen, pad_id=pad_id), 2 if choices else None)


def compare(
    model: GraphModel, session: Any, batches: Iterable[TextBatch], *, is_multilabel: bool = False
) -> dict[str, Agreement]:
    """Return the agreement of each output of an ONNX Runtime session with that of `model`, over all batches.

    Padding is left out. With `is_multilabel` an answer is the set of all labels that apply.
    """
    tallies: dict[str, _Tally] = {}
    for rows in batches:
        ids, segments = rows.ids.long(), rows.segments.long()
        with torch.inference_mode():
            expected = model(ids, segments, rows.mask)
        outputs = session.run(list(expected), feed(rows))
        mask = rows.mask.numpy()
        for (name, values), output in zip(expected.items(), outputs, strict=True):
            tally = tallies.setdefault(name, _Tally(_measure(model.architecture, values.shape, is_multilabel)))
            tally.add(values.numpy(), output, mask if _is_by_token(model.architecture, name) else None)
    return {name: tally.result() for name, tally in tallies.items()}


def feed(rows: TextBatch) -> dict[str, NDArray[np.int64]]:
    """Return the inputs of an ONNX Runtime session for a batch."""
    return {
        name: values.long().numpy() for name, values in zip(INPUTS, (rows.ids, rows.mask, rows.segments), strict=True)
    }


class _Tally:
    """Running sums and answers of one output, over the batches so far."""

    def __init__(self, measure: str) -> None:
        self.measure = measure
        self.largest = self.total = self.value = 0.0
        self.numbers = 0
        self.answers: list[NDArray[Any]] = []  # per row or token: equality, cosine, or both scores

    def add(self, expected: NDArray[np.float32], output: NDArray[np.float32], mask: NDArray[np.bool_] | None) -> None:
        """Add the outputs of a batch; `mask` [B, T] leaves padding out of an output by token."""
        real = slice(None) if mask is None else mask
        difference = np.abs(expected[real] - output[real])
        self.largest = float(np.maximum(self.largest, difference.max()))  # unlike max(), keeps a NaN
        self.value = float(np.maximum(self.value, np.abs(expected[real]).max()))
        self.total += float(difference.sum(dtype=np.float64))
        self.numbers += difference.size
        self.answers.append(self._answers(expected, output, real))

    def _answers(self, expected: NDArray[np.float32], output: NDArray[np.float32], real: Any) -> NDArray[Any]:
        match self.measure:
            case "cosine":
                left, right = expected[real], output[real]
                norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
                cosines: NDArray[Any] = (left * right).sum(-1) / norms
                return cosines
            case "correlation":
                return np.concatenate([expected[real], output[real]], axis=-1)  # [rows or tokens, 2]
            case _ if self.measure == SETS:
                return np.asarray(((expected[real] > 0) == (output[real] > 0)).all(-1))
            case _ if self.measure == REPLACED:
                return np.asarray((expected[real] > 0) == (output[real] > 0))
            case _ if expected.ndim == 2 and not isinstance(real, slice):  # start and end logits: an answer a row
                logits = [np.where(real, values, -np.inf) for values in (expected, output)]
                return np.asarray(logits[0].argmax(-1) == logits[1].argmax(-1))
            case _:
                return np.asarray(expected[real].argmax(-1) == output[real].argmax(-1))

    def result(self) -> Agreement:
        """Return the agreement over all batches."""
        answers = np.concatenate(self.answers)
        is_score = self.measure == "correlation"
        agreement = np.corrcoef(answers.T)[0, 1] if is_score else answers.mean(dtype=np.float64)
        mean = self.total / self.numbers
        return Agreement(self.largest, mean, self.value, float(agreement), self.measure, len(answers))


def _measure(architecture: str, shape: Sequence[int], is_multilabel: bool) -> str:
    if architecture == "BertModel":
        return "cosine"
    if is_multilabel:
        return SETS
    if architecture == DISCRIMINATOR:
        return REPLACED
    return "correlation" if shape[-1] == 1 else ANSWERS  # a single output is a score, not a choice between labels


def _is_by_token(architecture: str, output: str) -> bool:
    """Return whether an output has the shape [B, T, …] and so holds padding."""
    if output == "logits":
        return architecture in ("BertForMaskedLM", "BertForTokenClassification", DISCRIMINATOR)
    return output in ("last_hidden_state", "prediction_logits", "start_logits", "end_logits")


def _shaped(rows: TextBatch, choices: int | None) -> TextBatch:
    """Return rows [B·C, T] as [B, C, T] for a model of choices."""
    if choices is None:
        return rows
    ids, segments, mask = (part.unflatten(0, (-1, choices)) for part in (rows.ids, rows.segments, rows.mask))
    return TextBatch(ids, segments, mask)
