"""Fitted classifiers in files, of which only numbers and the libraries' own classes are read: no code of a pickle runs."""

import inspect
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from memlib.errors import UserError

CALLED = frozenset({
    "builtins bytearray", "builtins complex", "builtins frozenset", "builtins set", "builtins slice",
    "collections OrderedDict", "copyreg _reconstructor", "builtins object",
    "joblib.numpy_pickle NumpyArrayWrapper",
    "numpy dtype", "numpy ndarray", "numpy._core.multiarray _reconstruct", "numpy._core.multiarray scalar",
    "numpy._core.numeric _frombuffer", "numpy.core.multiarray _reconstruct", "numpy.core.multiarray scalar",
    "numpy.random._mt19937 MT19937", "numpy.random._pcg64 PCG64", "numpy.random._pickle __bit_generator_ctor",
    "numpy.random._pickle __generator_ctor", "numpy.random._pickle __randomstate_ctor",
    "numpy.random.bit_generator SeedSequence", "numpy.random.bit_generator __pyx_unpickle_SeedSequence",
    "sklearn.metrics._dist_metrics newObj", "sklearn.neighbors._kd_tree newObj", "sklearn.neighbors._ball_tree newObj",
    "xgboost.sklearn XGBClassifier", "xgboost.core Booster", "lightgbm.sklearn LGBMClassifier", "lightgbm.basic Booster",
})  # fmt: skip
"""What a file may name besides the classes of scikit-learn: nothing of this opens files or runs what it is given."""
APART = ("sklearn.utils._testing", "sklearn.externals", "sklearn.datasets")
"""Modules of scikit-learn whose classes write files or come from other libraries."""
XGBOOST = (".json", ".ubj")


def read_estimator(path: str) -> Any:
    """Return the fitted classifier of a file: of joblib or pickle, by allowed names alone, or of XGBoost.

    Raises:
        UserError: when the file cannot be read, names something else than classes of scikit-learn, or holds no classifier.
    """
    try:
        content = Path(path).read_bytes()
        model = _xgboost(content, path) if path.endswith(XGBOOST) else _unpickled(content, path)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read the classifier {path} ({error.strerror or error})") from error
    except Exception as error:  # pickles of other versions fail in many ways
        reason = (str(error).splitlines() or [""])[0][:200]
        raise UserError(
            f"cannot read the classifier {path} ({type(error).__name__}: {reason}); was it saved with another version of its "
            "library?"
        ) from error
    if not callable(getattr(model, "predict_proba", None)):
        raise UserError(f"{path} holds a {type(model).__name__}, which has no predict_proba; save the fitted classifier")
    return model


def _unpickled(content: bytes, path: str) -> Any:
    """Return the object of a file of joblib (compressed or not) or of pickle."""
    from joblib import numpy_pickle, numpy_pickle_utils

    def allowed(module: str, name: str) -> Any:
        if f"{module} {name}" == "joblib.numpy_pickle NumpyArrayWrapper":
            return Arrays
        found = _found(module, name)
        if found is None:
            raise UserError(
                f"{path} names {module}.{name}, which is no class of scikit-learn: as a pickle may run code, it is not "
                "opened; give the model by a factory, trained.model: package.module:function"
            )
        return found

    class Objects(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            return allowed(module, name)

    class Arrays(numpy_pickle.NumpyArrayWrapper):  # type: ignore[misc]
        def read_array(self, unpickler: Any, *args: Any) -> Any:
            if self.dtype.hasobject:  # joblib would open a second pickle without any restriction
                return Objects(unpickler.file_handle).load()
            return super().read_array(unpickler, *args)

    class Whole(numpy_pickle.NumpyUnpickler):  # type: ignore[misc]
        def find_class(self, module: str, name: str, /) -> Any:
            return allowed(module, name)

    with numpy_pickle_utils._validate_fileobject_and_memmap(io.BytesIO(content), "", None) as (file, _):
        return Whole("", file, True).load()


def _found(module: str, name: str) -> Any:
    """Return a class or constructor that a file may name; None for anything else, which is not even imported."""
    if f"{module} {name}" in CALLED:
        return pickle.Unpickler(io.BytesIO()).find_class(module, name)
    if module == "numpy" and isinstance(kind := getattr(np, name, None), type) and issubclass(kind, np.generic):
        return kind
    if not module.startswith("sklearn.") or module.startswith(APART) or "." in name:
        return None
    found = pickle.Unpickler(io.BytesIO()).find_class(module, name)
    is_own = inspect.isclass(found) and found.__module__.startswith("sklearn.") and not found.__module__.startswith(APART)
    return found if is_own else None


def _xgboost(content: bytes, path: str) -> Any:
    """Return a classifier of XGBoost with the settings that its file states."""
    try:
        import xgboost
    except ImportError as error:
        raise UserError(f"{path} is a model of XGBoost; install memlib with its extra xgboost") from error
    model = xgboost.XGBClassifier()
    model.load_model(bytearray(content))
    learner = json.loads(model.get_booster().save_config())["learner"]
    trees = learner["gradient_booster"].get("tree_train_param", {})
    stated = {"eta": "learning_rate", "max_depth": "max_depth", "lambda": "reg_lambda", "alpha": "reg_alpha",
              "gamma": "gamma", "min_child_weight": "min_child_weight", "subsample": "subsample",
              "colsample_bytree": "colsample_bytree", "max_leaves": "max_leaves"}  # fmt: skip
    numbers = {ours: float(trees[name]) for name, ours in stated.items() if name in trees}
    whole = {name: int(value) if name in ("max_depth", "max_leaves") else value for name, value in numbers.items()}
    return model.set_params(n_estimators=model.get_booster().num_boosted_rounds(), **whole)
