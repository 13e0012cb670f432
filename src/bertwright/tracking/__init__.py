"""metrics.jsonl → trackers: TensorBoard, MLflow, Weights & Biases, trackio."""
