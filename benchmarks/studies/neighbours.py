"""Dependence of a vector on the other texts of its batch: the largest difference from the vector of the text alone.

python -m benchmarks.studies.neighbours [--model small-wiki] [--texts 64]
"""

import argparse

import numpy as np

import bertwright as bw

WORDS = (
    "the river rose after a long cold rain and old trees fell near our small house while seven children played music "
    "in 1987 when London was quiet because nobody came to work that strange morning of June"
)


def main() -> None:
    """Print the difference for each precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small-wiki")
    parser.add_argument("--texts", type=int, default=64)
    options = parser.parse_args()
    random, words = np.random.default_rng(0), WORDS.split()
    texts = [" ".join(random.choice(words, random.integers(3, 60))) for _ in range(options.texts)]
    for precision in ("fp32", "bf16", "int8"):
        model = bw.load(options.model, precision=precision)
        together = np.asarray(model.vectors(texts))
        alone = np.concatenate([np.asarray(model.vectors([text])) for text in texts])
        print(f"{precision}: {np.abs(together - alone).max():.1g}")


if __name__ == "__main__":
    main()
