"""An entry of the BabyLM challenge: text → encoder, its checkpoints and all of its measurements, with one command."""
