"""Fitted classifiers in files: a pickle is read as data, and no code that it names is called.

A pickle is a program: it names functions, calls them, and sets attributes of whatever lies on its stack. Here names stay
names. An instance of a listed class is made without its constructor, and its attributes are set one by one, unless they would
hide a method; of numpy and of scikit-learn's compiled classes, listed constructors alone are called. Nothing else is.
"""

import inspect
import io
import json
import math
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from memlib.data.bounds import PIECE
from memlib.data.opening import check_fits
from memlib.errors import UserError

PLAIN: Mapping[str, str] = {
    "sklearn.calibration": "CalibratedClassifierCV _CalibratedClassifier _SigmoidCalibration _TemperatureScaling",
    "sklearn.compose._column_transformer": "ColumnTransformer _RemainderColsList",
    "sklearn.decomposition._pca": "PCA",
    "sklearn.decomposition._truncated_svd": "TruncatedSVD",
    "sklearn.discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "sklearn.dummy": "DummyClassifier",
    "sklearn.ensemble._bagging": "BaggingClassifier",
    "sklearn.ensemble._forest": "ExtraTreesClassifier RandomForestClassifier",
    "sklearn.ensemble._gb": "GradientBoostingClassifier",
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": "HistGradientBoostingClassifier",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
    "sklearn.ensemble._voting": "VotingClassifier",
    "sklearn.ensemble._weight_boosting": "AdaBoostClassifier",
    "sklearn.feature_selection._variance_threshold": "VarianceThreshold",
    "sklearn.impute._base": "MissingIndicator SimpleImputer",
    "sklearn.isotonic": "IsotonicRegression",
    "sklearn.linear_model._logistic": "LogisticRegression LogisticRegressionCV",
    "sklearn.linear_model._stochastic_gradient": "SGDClassifier",
    "sklearn.naive_bayes": "BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB",
    "sklearn.neighbors._classification": "KNeighborsClassifier",
    "sklearn.neural_network._multilayer_perceptron": "MLPClassifier",
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
    "sklearn.pipeline": "FeatureUnion Pipeline",
    "sklearn.preprocessing._data": "Binarizer MaxAbsScaler MinMaxScaler Normalizer PowerTransformer QuantileTransformer "
    "RobustScaler StandardScaler",
    "sklearn.preprocessing._discretization": "KBinsDiscretizer",
    "sklearn.preprocessing._function_transformer": "FunctionTransformer",
    "sklearn.preprocessing._encoders": "OneHotEncoder OrdinalEncoder",
    "sklearn.preprocessing._label": "LabelBinarizer LabelEncoder",
    "sklearn.preprocessing._polynomial": "PolynomialFeatures SplineTransformer",
    "sklearn.svm._classes": "NuSVC SVC",
    "sklearn.tree._classes": "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier",
    "sklearn._loss.link": "IdentityLink Interval LogitLink LogLink MultinomialLogit",
    "sklearn._loss.loss": "ExponentialLoss HalfBinomialLoss HalfMultinomialLoss",
}
"""Classes of scikit-learn, by module, whose instances are made without their constructors."""
BUILT: Mapping[str, tuple[str, ...]] = {
    "numpy": ("dtype",),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.numeric": ("_frombuffer",),
    "numpy.random._pickle": ("__bit_generator_ctor", "__generator_ctor", "__randomstate_ctor"),
    "sklearn.tree._tree": ("Tree",),
    "sklearn._loss._loss": tuple(
        f"{start}{name}"
        for start in ("", "__pyx_unpickle_")
        for name in ("CyExponentialLoss", "CyHalfBinomialLoss", "CyHalfMultinomialLoss")
    ),
    "builtins": ("bytearray", "bytes", "complex", "frozenset", "set", "slice"),
    "collections": ("OrderedDict",),
    "_codecs": ("encode",),
}
"""Constructors that are called, with values alone: none opens a file or calls what it is given."""
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "sklearn.neighbors._kd_tree": ("KDTree", "newObj"),
    "sklearn.neighbors._ball_tree": ("BallTree", "newObj"),
    "sklearn.metrics._dist_metrics": ("EuclideanDistance64", "EuclideanDistance32", "MinkowskiDistance64", "newObj",
                                      "ManhattanDistance64"),
    "numpy.random.bit_generator": ("SeedSequence", "__pyx_unpickle_SeedSequence"),
}  # fmt: skip
"""Search trees, without which neighbours are searched by brute force, and seeds of random states; neither is read."""
VALUES = frozenset({"numpy ndarray", "numpy.random._mt19937 MT19937", "numpy.random._pcg64 PCG64", "builtins object",
                    "joblib.numpy_pickle NumpyArrayWrapper", "copyreg _reconstructor"})  # fmt: skip
"""Further names that a pickle may have."""
RESET: Mapping[str, Any] = {"memory": None, "verbose": False, "n_jobs": None, "_tree": None}
"""Attributes that are not taken from a file: a memory writes files, and a search tree is left out."""
XGBOOST = (".json", ".ubj")
_Interpreter: Any = pickle._Unpickler  # the one in Python, whose operations can be replaced


@dataclass(frozen=True)
class _Name:
    """A name in a pickle, which is not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module} {self.name}"

    @property
    def is_plain(self) -> bool:
        """True for a class whose instances are made without its constructor."""
        return self.name in PLAIN.get(self.module, "").split()

    @property
    def is_scalar(self) -> bool:
        """True for a numpy type, such as float64."""
        kind = getattr(np, self.name, None) if self.module == "numpy" else None
        return isinstance(kind, type) and issubclass(kind, np.generic)

    @property
    def is_known(self) -> bool:
        """True if a pickle may name it."""
        listed = self.name in BUILT.get(self.module, ()) or self.name in LEFT_OUT.get(self.module, ())
        return listed or self.is_plain or self.is_scalar or str(self) in VALUES or str(self) == "sklearn.utils._bunch Bunch"

    def load(self) -> Any:
        """Return what it names."""
        return pickle.Unpickler(io.BytesIO()).find_class(self.module, self.name)


class _Dropped:
    """A value of a pickle that is not read."""


def read_estimator(path: str) -> Any:
    """Return the fitted classifier of a file: of joblib or pickle, as data, or of XGBoost.

    Raises:
        UserError: when the file cannot be read, names anything but listed classes of scikit-learn, or holds no classifier.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other versions, which fail below if they differ
            model = _xgboost(Path(path).read_bytes(), path) if path.endswith(XGBOOST) else _unpickled(path)
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


def _unpickled(path: str) -> Any:
    """Return the object of a file of joblib (compressed or not) or of pickle."""
    content = _decompressed(path)
    try:
        return _Reader(content, path).load()
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError) as error:
        raise UserError(f"cannot read the classifier {path}: it is no pickle that scikit-learn's users save") from error


def _decompressed(path: str) -> bytes:
    """Return the content of a file as joblib decompresses it, as long as it fits in memory."""
    from joblib import numpy_pickle_utils

    pieces, size = [], 0
    with open(path, "rb") as raw, numpy_pickle_utils._validate_fileobject_and_memmap(raw, path, None) as (file, _):
        while part := file.read(PIECE):
            check_fits(path, size := size + len(part))
            pieces.append(part)
    return b"".join(pieces)


def _refuse(path: str, name: str) -> UserError:
    return UserError(
        f"{path} names {name}, which is no class of scikit-learn that is read: as a pickle may run code, it is not "
        "opened; give the model by a factory, trained.model: package.module:function"
    )


class _Reader(_Interpreter):  # type: ignore[misc]
    """An interpreter of pickles that calls nothing but listed constructors.

    Args:
        content: the whole pickle, with the arrays that joblib puts between its operations.
        path: name of the file, for messages.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_Interpreter.dispatch)

    def __init__(self, content: bytes | io.BytesIO, path: str) -> None:
        self._path, self._file = path, content if isinstance(content, io.BytesIO) else io.BytesIO(content)
        self._fresh: dict[int, Any] = {}  # instances whose state may be set
        super().__init__(self._file)

    def find_class(self, module: str, name: str) -> Any:
        """Return a name, which is not imported."""
        found = _Name({"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module), name)  # in old pickles
        if not found.is_known:
            raise _refuse(self._path, f"{module}.{name}")
        return found

    @property
    def _left(self) -> int:
        """The number of bytes that are left."""
        return len(self._file.getbuffer()) - self._file.tell()

    def _made(self, instance: Any) -> Any:
        self._fresh[id(instance)] = instance
        return instance

    def _new(self, name: Any) -> Any:
        """Return an instance of a listed class, without a call of its constructor."""
        if isinstance(name, _Name) and str(name) == "joblib.numpy_pickle NumpyArrayWrapper":
            return self._made(_Array())
        if isinstance(name, _Name) and str(name) == "sklearn.utils._bunch Bunch":
            return self._made(name.load()())
        if isinstance(name, _Name) and name.name in LEFT_OUT.get(name.module, ()):
            return self._made(_Dropped())
        if not isinstance(name, _Name) or not name.is_plain:
            raise _refuse(self._path, str(name).replace(" ", "."))
        kind = name.load()
        assert inspect.isclass(kind), "listed names are of classes"
        return self._made(object.__new__(kind))

    def load_newobj(self) -> None:
        """Make an instance."""
        arguments, name = self.stack.pop(), self.stack.pop()
        is_called = isinstance(name, _Name) and name.name in BUILT.get(name.module, ())
        self.stack.append(self._called(name, arguments) if is_called else self._new(name))

    def load_reduce(self) -> None:
        """Call a listed constructor with values."""
        arguments, name = self.stack.pop(), self.stack.pop()
        self.stack.append(self._called(name, arguments))

    def _called(self, name: Any, arguments: Any) -> Any:
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise _refuse(self._path, f"a call of {type(name).__name__}")
        if str(name) == "copyreg _reconstructor":
            return self._new(arguments[0])
        if name.name in LEFT_OUT.get(name.module, ()):
            return self._made(_Dropped())
        if name.name not in BUILT.get(name.module, ()):
            raise _refuse(self._path, str(name).replace(" ", "."))
        if name.name == "_reconstruct" and (len(arguments) != 3 or arguments[1] != (0,)):
            raise _refuse(self._path, "an array with a size of its own")
        if name.name in ("bytes", "bytearray") and not all(isinstance(one, bytes | bytearray) for one in arguments):
            raise _refuse(self._path, f"{name.name} of a size of its own")
        if name.module == "_codecs" and not (len(arguments) == 2 and arguments[1] == "latin1"):
            raise _refuse(self._path, "another encoding than that of bytes in old pickles")
        if name.name.endswith("_ctor"):  # seeds of random states are drawn by the auditor
            return self._made(_Dropped())
        values = list(map(self._value, arguments[1:] if name.name.startswith("__pyx") else arguments))
        if name.name.startswith("__pyx"):
            values.insert(0, _Name(name.module, name.name.removeprefix("__pyx_unpickle_")).load())
        return self._made(name.load()(*values))

    def _value(self, value: Any) -> Any:
        """Return a value of an argument or attribute; of names, those of numpy's types alone."""
        if not isinstance(value, _Name):
            return None if isinstance(value, _Dropped) else value
        if value.is_scalar or str(value) == "numpy ndarray":
            return value.load()
        raise _refuse(self._path, str(value).replace(" ", "."))

    def load_build(self) -> None:
        """Set the state of an instance that this pickle has made."""
        state, instance = self.stack.pop(), self.stack[-1]
        if id(instance) not in self._fresh:
            raise _refuse(self._path, f"attributes of a {type(instance).__name__}")
        if isinstance(instance, _Dropped):
            return
        if isinstance(instance, _Array):
            self.stack[-1] = instance.read(state, self)
            return
        kind = type(instance)
        if kind.__module__.startswith(("numpy", "sklearn.tree._tree")) or kind.__module__ == "sklearn._loss._loss":
            instance.__setstate__(state)
            _check_tree(instance, self._path)
            return
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise _refuse(self._path, f"a state of {kind.__name__}")
        for key, value in state.items():
            if key.startswith("__") or callable(getattr(kind, key, None)):
                raise _refuse(self._path, f"an attribute {key} of {kind.__name__}")
            instance.__dict__[key] = RESET[key] if key in RESET else self._value(value)
        if any(instance.__dict__.get(name) is not None for name in ("func", "inverse_func")):
            raise _refuse(self._path, f"a function of {kind.__name__}")
        if kind.__name__ == "IsotonicRegression":
            instance.__setstate__(dict(instance.__dict__))  # makes its function from the numbers
        if "_fit_method" in state:
            instance.__dict__["_fit_method"] = "brute"
        _check_predictor(instance, self._path)

    def load_bytearray8(self) -> None:
        """Read bytes that are there."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))  # Python's own interpreter takes memory for them first

    def _refused(self) -> None:
        raise _refuse(self._path, "an operation of pickles that scikit-learn's do not have")


def _on_containers(name: str, depth: bool) -> Callable[[Any], None]:
    """Return an operation that is done on plain containers alone.

    Args:
        name: name of the method of Python's own interpreter.
        depth: whether the items lie above a mark.
    """
    inner = getattr(_Interpreter, name)

    def load(self: Any) -> None:
        below = self.metastack[-1] if depth else self.stack
        container = below[-1 if depth else -3 if name == "load_setitem" else -2]
        is_bunch = type(container).__name__ == "Bunch" and id(container) in self._fresh
        if type(container) not in (list, dict, set, OrderedDict) and not is_bunch:
            raise _refuse(self._path, f"items of a {type(container).__name__}")
        inner(self)

    return load


for _opcode, _load in {
    pickle.NEWOBJ: _Reader.load_newobj, pickle.REDUCE: _Reader.load_reduce, pickle.BUILD: _Reader.load_build,
    pickle.BYTEARRAY8: _Reader.load_bytearray8,
    pickle.APPEND: _on_containers("load_append", False), pickle.APPENDS: _on_containers("load_appends", True),
    pickle.SETITEM: _on_containers("load_setitem", False), pickle.SETITEMS: _on_containers("load_setitems", True),
    pickle.ADDITEMS: _on_containers("load_additems", True),
    **dict.fromkeys(
        (pickle.NEWOBJ_EX, pickle.OBJ, pickle.INST, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID),
        _Reader._refused,
    ),
}.items():  # fmt: skip
    _Reader.dispatch[_opcode[0]] = _load


class _Array:
    """An array that joblib wrote between the operations of its pickle."""

    def read(self, state: Mapping[str, Any], reader: _Reader) -> Any:
        """Return the array: it lies at the reader's place in the file, and has as many bytes as the file has."""
        dtype, shape, file = state["dtype"], tuple(map(int, state["shape"])), reader._file
        if dtype.hasobject:
            return _Reader(file, reader._path).load()
        if state.get("numpy_array_alignment_bytes") is not None:
            file.read(int.from_bytes(file.read(1), "little"))
        count = math.prod(shape)
        if min(shape, default=1) < 0 or count * dtype.itemsize > reader._left:
            raise pickle.UnpicklingError("an array has more numbers than the file")
        values = np.frombuffer(file.read(count * dtype.itemsize), dtype=dtype).copy()
        is_swapped = dtype.byteorder not in ("=", "|") and not dtype.isnative
        values = values.astype(dtype.newbyteorder("=")) if is_swapped else values
        return values.reshape(shape[::-1]).T if state["order"] == "F" else values.reshape(shape)


def _check_tree(tree: Any, path: str) -> None:
    """Raise UserError for a decision tree whose nodes lie outside of it, at which its compiled code would read."""
    if type(tree).__name__ != "Tree":
        return
    count = tree.node_count
    for children in (tree.children_left, tree.children_right):
        if len(children) and not (children.min() >= -1 and children.max() < count):
            raise UserError(f"{path} holds a tree with nodes outside of it; save the classifier again")
    if len(tree.feature) and not (tree.feature.min() >= -2 and tree.feature.max() < tree.n_features):
        raise UserError(f"{path} holds a tree of columns that it does not have; save the classifier again")


def _check_predictor(predictor: Any, path: str) -> None:
    """Raise UserError for a tree of histogram boosting whose nodes lie outside of it."""
    nodes = predictor.__dict__.get("nodes")
    if type(predictor).__name__ != "TreePredictor" or nodes is None:
        return
    inner = nodes[nodes["is_leaf"] == 0]
    if len(inner) and max(int(inner["left"].max()), int(inner["right"].max())) >= len(nodes):
        raise UserError(f"{path} holds a tree with nodes outside of it; save the classifier again")


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
