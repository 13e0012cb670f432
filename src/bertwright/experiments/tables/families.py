"""BERT's successors at equal time: which one is the best use of a few hours of a few cores."""

from collections.abc import Iterator
from typing import Any, Final

from bertwright.experiments.spec import Arm, Claim, Experiment, RateSearch
from bertwright.experiments.tables import columns
from bertwright.model.system import REPLACED_TOKEN_SYSTEMS


def _arm(name: str, title: str, **changes: Any) -> Arm:
    """Return an arm with random weights and no compiled step, as all arms have; `changes` are further settings."""
    return Arm(name=name, title=title, pretraining={"start": "random", "compile": "off", **changes})


_BERT: Final = _arm("bert", "BERT")
_SUCCESSORS: Final = (
    (
        _arm("roberta", "RoBERTa", system="roberta", examples={"short_share": 0.0}),
        "not measured; RoBERTa's has RoBERTa ahead, with more text and many more steps",
    ),
    (
        _arm("electra", "ELECTRA", system="electra"),
        "not measured; ELECTRA's has ELECTRA ahead with the same size, data and compute",
    ),
    (
        _arm("albert", "ALBERT", system="albert"),
        "not measured; ALBERT's has an ALBERT of far greater width ahead of BERT-large at equal time",
    ),
    (
        _arm("modernbert", "ModernBERT", system="modernbert", examples={"masking": {"share": 0.3}}),
        "not measured; ModernBERT's has ModernBERT ahead, with far more text",
    ),
    (
        _arm("gpt-bert", "GPT-BERT", system="gpt-bert"),
        "not measured; GPT-BERT's has it ahead of the same model with masked rows alone or causal rows alone",
    ),
    (_arm("bert-matching", "BERT with the start `matching`", start="matching"), "not measured"),
)
"""Arms that are compared with BERT, and the numbers of the papers. A line here is one more arm with its claims."""


_WEAK_GENERATOR: Final = (
    "ELECTRA's generator hardly learned in the runs of docs/results (7.0 nats), and then nothing is said about ELECTRA"
)


def _claims(arm: Arm, paper: str) -> Iterator[Claim]:
    """Yield the claims that an arm is better than BERT: on the tasks, on minimal pairs and in bits a character."""
    both: dict[str, Any] = {"arm": arm.name, "against": _BERT.name, "paper": paper}
    finds_replaced = arm.pretraining.get("system") in REPLACED_TOKEN_SYSTEMS
    confound = _WEAK_GENERATOR if finds_replaced else ""
    yield Claim(statement=f"{arm.title} is better than BERT at equal time on the tasks.", confound=confound, **both)
    if finds_replaced:  # its model predicts no piece
        return
    yield Claim(
        statement=f"{arm.title} is better than BERT at equal time on minimal pairs.",
        columns=(columns.BLIMP_ACCURACY.name,),
        **both,
    )
    yield Claim(
        statement=f"{arm.title} has fewer bits a character than BERT at equal time.",
        columns=(columns.CHARACTER_BITS.name,),
        unknown_delta=columns.BITS_DELTA,
        **both,
    )


FAMILIES: Final = Experiment(
    name="families",
    title="BERT's successors at equal time",
    question="Which of BERT's successors is the best use of the same time on the same processors?",
    arms=lambda _: (_BERT, *(arm for arm, _ in _SUCCESSORS)),
    columns=(*columns.SENTENCE_COLUMNS, columns.BLIMP_ACCURACY, columns.CHARACTER_BITS),
    claims=tuple(claim for arm, paper in _SUCCESSORS for claim in _claims(arm, paper)),
    note="All arms read the same corpus with the same WordPiece vocabulary, RoBERTa too, so that bits a character can "
    "be compared. The bits are the loss on masked pieces of the same rows, with 15 % masked. ELECTRA's discriminator "
    "predicts no piece, so that neither minimal pairs nor bits apply to it. A sentence of a minimal pair is scored by "
    "its pseudo-log-likelihood, for which each piece is masked in turn, with the later pieces of its word; chance is "
    "50 %.",
    limits=(
        "The time is that of pre-training. The trials of learning rates and the fine-tunings are not in it; the table "
        "of costs has them.",
        "Every arm is fine-tuned with the same settings. Other learning rates of fine-tuning may favour other arms.",
        "Each learning rate is chosen in a shorter run, with one seed. A longer run may be best with a lower one. If "
        "all trials of an arm end near the loss of the frequencies of the pieces, its rate is chosen by chance. If two "
        "arms have different factors, a part of their difference can be that of the rate.",
        "ELECTRA's rate is chosen by the loss of its discriminator. With a weak generator the replaced tokens are easy "
        "to find, so that a rate may have a low loss for this reason alone. If the generator stays at the loss of the "
        "frequencies, the page says nothing about ELECTRA.",
        "BERT learns next sentences too, and ALBERT the order of two pieces of text. The others learn from one piece "
        "of text at a time, as in their papers. So a lead on STS-B, RTE and QNLI can be that of the second objective.",
        "The speed is that of this program on the machine where it was measured. Another program may be faster for one "
        "of the arms.",
        "No step is compiled. RoBERTa's larger batches and ModernBERT's other tokenizer are not here. Every arm has "
        "the rows, the optimiser and the size of the scale; ModernBERT predicts 30 % of the tokens, and ELECTRA has a "
        "generator of a quarter of its width.",
        "All arms but one begin with random weights, because ALBERT cannot have another start. `pretrain` begins a "
        "BERT, a RoBERTa, an ELECTRA and a ModernBERT of this size with `--start matching`; one more BERT shows that "
        "start.",
        "The ModernBERTs of docs/results had classifiers that read the state of [CLS]. A ModernBERT that is made now "
        "reads the mean of its states, and can learn next sentences. After short pre-trainings both are far better on "
        "pairs of texts (docs/log.md). So its verdicts on the tasks do not hold for the program of today, and further "
        "pre-trainings would be of another model.",
    ),
    rate_search=RateSearch(minutes=40.0),
    pretraining_seeds=3,
)
