"""text → token ids → shards: corpora on disk, their checks and their reader."""
