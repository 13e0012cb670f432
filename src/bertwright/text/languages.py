"""text → sentences: the code of a language → the one that sentence rules are known by.

The rules are asked for by lower-case codes, and anything that they do not know is cut by those of English in silence.
"""

import re
from typing import Final

_CODE: Final = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*")
TWO_LETTERS: Final = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
    es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
    ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
    no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw
    ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """.split()
)
"""ISO 639-1, and two that Wikipedias still have: bh and sh."""


def known_language(given: str) -> str:
    """`de` for de, DE and de-AT; three letters stay as they are, in lower case. ValueError for what is no language."""
    code = given.lower()
    language = code.partition("-")[0]
    if not _CODE.fullmatch(code) or (len(language) == 2 and language not in TWO_LETTERS):
        raise ValueError(
            f"{given!r} is no language; allowed are the two letters of ISO 639-1, such as en or ko, or the three of "
            "a language that has no two"
        )
    return language if len(language) == 2 else code
