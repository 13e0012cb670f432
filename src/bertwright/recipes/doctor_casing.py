"""vocabulary + rules → finding: whether case is treated as the pieces need it."""

import re
from functools import partial
from typing import Final

from bertwright.recipes.doctor_findings import Finding
from bertwright.text.any_tokenizer import AnyTokenizer
from bertwright.text.vocabulary import SPECIAL

_CAPITALS: Final = 0.01
"""Share of pieces with capitals from which on a vocabulary is a cased one."""
_SMALL: Final = 0.1
"""Share of pieces with small letters from which on a vocabulary is of a script that has capitals."""


def casing(words: AnyTokenizer, said: bool | None, *, part: str = "model") -> Finding:
    """Case as the rules treat it against the pieces that the vocabulary has.

    said: do_lower_case of tokenizer_config.json, None where it is silent; the two cannot contradict each other, since
    such a folder does not open.
    """
    finding = partial(Finding, part, "casing")
    ordinary = [piece for piece in words.pieces if piece not in SPECIAL and not re.fullmatch(r"\[\w+\]", piece)]
    capitals = sum(piece != piece.lower() for piece in ordinary) / max(1, len(ordinary))
    small = sum(piece != piece.upper() for piece in ordinary) / max(1, len(ordinary))
    kind = "cased" if words.cased else "uncased"
    value = {"cased": words.cased, "capital_pieces": capitals}
    text = f"{kind}; {capitals:.1%} of the pieces have capitals"
    if not words.cased and capitals > _CAPITALS:
        return finding(
            "error",
            value,
            f"{text}, and none of these can ever be met: text is lower-cased before it is cut",
            "a cased vocabulary is read with do_lower_case false: correct tokenizer.json and tokenizer_config.json, or "
            "import vocab.txt again with --cased",
        )
    if words.cased and not capitals and small > _SMALL:
        return finding(
            "warning",
            value,
            f"{text}: every capital in a text gives [UNK]",
            "an uncased vocabulary is read with do_lower_case true: import vocab.txt again without --cased",
        )
    if words.cased and said is None:
        return finding(
            "warning",
            value,
            f"{text}, but tokenizer_config.json is silent about do_lower_case: other libraries lower-case then",
            'write "do_lower_case": false into tokenizer_config.json',
        )
    return finding("ok", value, text)
