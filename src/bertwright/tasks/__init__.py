"""What fine-tuning asks of the model."""
