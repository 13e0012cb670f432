"""texts → fitted scikit-learn estimators: fine-tuning and vectors for Pipeline, GridSearchCV and others.

The estimators use the tasks, the training loop and the model folder of `bertwright finetune`. torch is imported on
fit, not by `import bertwright.sklearn`.
"""

from bertwright.errors import MissingExtra

try:
    import sklearn  # noqa: F401
except ImportError:
    raise MissingExtra("tasks", "bertwright.sklearn") from None

from bertwright.sklearn.estimators import BertClassifier, BertRegressor, BertVectorizer
from bertwright.sklearn.inputs import EstimatorError
from bertwright.sklearn.tagger import BertTagger

__all__ = ["BertClassifier", "BertRegressor", "BertTagger", "BertVectorizer", "EstimatorError"]
