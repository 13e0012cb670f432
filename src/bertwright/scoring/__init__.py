"""texts → scores of a language model: sentences, and the minimal pairs of BLiMP."""
