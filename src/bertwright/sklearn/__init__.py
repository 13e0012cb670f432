"""texts → a scikit-learn estimator that was fitted to them: fine-tuning and vectors for Pipeline, GridSearchCV and kin.

Nothing here trains or answers by itself: the tasks, the loop and the model folder are those of `bertwright finetune`.
torch is imported when something is fitted, and not by `import bertwright.sklearn`.
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
