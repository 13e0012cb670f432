"""Sentences of texts beside those of sentencex alone, which knows no limit for quotes that stay open.

python -m benchmarks.studies.sentences TEXT... [--language en] [--paragraphs 20000]
"""

import argparse
from collections import Counter
from itertools import islice

import sentencex

from bertwright.text.document import Document, TextSettings, tidy
from bertwright.text.documents import find_inputs, read_paragraphs
from bertwright.text.sentences import split_sentences


def main() -> None:
    """Split the first paragraphs in both ways, and print how many sentences differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--language", default="en")
    parser.add_argument("--paragraphs", type=int, default=20_000)
    options = parser.parse_args()
    settings = TextSettings(language=options.language)
    count = differing = 0
    for paragraph in islice(read_paragraphs(find_inputs(options.texts), settings), options.paragraphs):
        plain = Counter(sentence for part in sentencex.segment(options.language, paragraph) if (sentence := tidy(part)))
        ours = Counter(split_sentences(Document((paragraph,), ""), settings))
        count += plain.total()
        differing += (plain - ours).total()
    print(f"{count:,} sentences of sentencex, {differing:,} of which are other ones here ({differing / count:.3%})")


if __name__ == "__main__":
    main()
