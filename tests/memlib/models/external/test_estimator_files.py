"""Files of fitted classifiers: what scikit-learn saves is read, and nothing else of a pickle is."""

import os
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from memlib.errors import UserError
from memlib.models.external.estimator_files import read_estimator

RNG = np.random.default_rng(0)
LABELS = np.array(["benign", "malignant"], dtype=object)[np.arange(60) % 2]
POINTS = RNG.normal(size=(60, 3)) + (LABELS == "benign")[:, None]


@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(3, random_state=np.random.RandomState(0)), HistGradientBoostingClassifier(max_iter=3),
        GradientBoostingClassifier(n_estimators=3), LogisticRegression(), GaussianNB(), KNeighborsClassifier(algorithm="kd_tree"),
        MLPClassifier((4,), max_iter=500), make_pipeline(StandardScaler(), LogisticRegression()),
        make_pipeline(ColumnTransformer([("a", OneHotEncoder(handle_unknown="ignore"), [0])], remainder="passthrough"),
                      RandomForestClassifier(3)),
    ],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
@pytest.mark.parametrize("ending", [".joblib", ".pkl"])
def test_a_classifier_that_scikit_learn_saved_answers_as_before(tmp_path: Path, model: Any, ending: str) -> None:
    path = tmp_path / f"model{ending}"
    model.fit(POINTS, LABELS)
    if ending == ".pkl":
        path.write_bytes(pickle.dumps(model))
    else:
        joblib.dump(model, path, compress=3)
    assert np.array_equal(read_estimator(str(path)).predict_proba(POINTS), model.predict_proba(POINTS))


class Runs:
    """An object whose unpickling runs a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_attributes_of_classes_and_calls_of_instances_are_refused(tmp_path: Path) -> None:
    """A chain that names classes of scikit-learn alone, sets attributes of a class, and calls what a scorer calls."""

    def named(module: str, name: str) -> bytes:
        return f"c{module}\n{name}\n".encode()

    text = b"X\x0e\x00\x00\x00estimator_type" + b"X\x09\x00\x00\x00regressor"
    forest = named("sklearn.ensemble._forest", "RandomForestClassifier")
    chains = {
        "of a class": named("sklearn.linear_model._logistic", "LogisticRegression") + b"}" + text + b"sb.",
        "of a function": named("copyreg", "_reconstructor") + b"}" + text + b"sb.",
        "a call of an instance": forest + b")\x81)R.",
        "a call of a class": forest + b")R.",
        "another class": named("sklearn.metrics._scorer", "_Scorer") + b")\x81.",
        "a method that is hidden": forest + b")\x81}X\x07\x00\x00\x00predictNsb.",
        "a class of an instance": forest + b")\x81}X\x09\x00\x00\x00__class__Nsb.",
        "items of an instance": forest + b")\x81Na.",
    }
    for what, content in chains.items():
        path = tmp_path / "model.pkl"
        path.write_bytes(b"\x80\x04" + content)
        with pytest.raises(UserError) as found:
            read_estimator(str(path))
        assert "no class of scikit-learn" in str(found.value), what


def test_a_pipeline_that_keeps_files_keeps_none(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression(), memory=str(tmp_path / "cache"))
    joblib.dump(model.fit(POINTS, LABELS), tmp_path / "m.joblib")
    assert read_estimator(str(tmp_path / "m.joblib")).memory is None


@pytest.mark.parametrize(
    "content", [b"cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\xc0\x00\x85R.", b"\x96" + b"\xff" * 8 + b"."]
)
def test_memory_is_not_taken_for_bytes_that_a_file_does_not_have(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.pkl").write_bytes(b"\x80\x05" + content)
    with pytest.raises(UserError):
        read_estimator(str(tmp_path / "m.pkl"))


def test_a_tree_with_nodes_outside_of_it_is_refused(tmp_path: Path) -> None:
    model = DecisionTreeClassifier(max_depth=1).fit(POINTS, LABELS)
    state = model.tree_.__getstate__()
    state["nodes"] = state["nodes"].copy()
    state["nodes"]["left_child"][0] = 10**6
    model.tree_.__setstate__(state)
    joblib.dump(model, tmp_path / "m.joblib")
    with pytest.raises(UserError, match="nodes outside of it"):
        read_estimator(str(tmp_path / "m.joblib"))


def test_code_in_a_pickle_does_not_run(tmp_path: Path) -> None:
    trap, path = tmp_path / "trap", tmp_path / "model.joblib"
    hidden = np.array([Runs(trap)], dtype=object)  # joblib opens a pickle of its own for such arrays
    inner = make_pipeline(FunctionTransformer(kw_args={"a": Runs(trap)}), SVC())
    calls = make_pipeline(FunctionTransformer(os.getcwd), SVC())
    for content in (Runs(trap), hidden, inner, calls, {"model": [Runs(trap)]}):
        joblib.dump(content, path)
        with pytest.raises(UserError, match="no class of scikit-learn"):
            read_estimator(str(path))
    assert not trap.exists()


@pytest.mark.parametrize(
    "named", ["sklearn.utils._testing TempMemmap", "sklearn.datasets load_files", "sklearn.base os.system", "numpy load"]
)
def test_functions_and_writing_classes_of_the_libraries_are_not_called(tmp_path: Path, named: str) -> None:
    module, name = named.split()
    path = tmp_path / "model.pkl"
    path.write_bytes(b"\x80\x04c" + f"{module}\n{name}\n".encode() + b"(tR.")
    with pytest.raises(UserError, match="no class of scikit-learn"):
        read_estimator(str(path))


def test_a_file_without_a_classifier_is_refused(tmp_path: Path) -> None:
    joblib.dump(StandardScaler().fit(POINTS), tmp_path / "scaler.joblib")
    (tmp_path / "text.joblib").write_text("no pickle")
    for name, said in (("scaler", "has no predict_proba"), ("text", "cannot read the classifier"), ("none", "No such file")):
        with pytest.raises(UserError, match=said) as found:
            read_estimator(str(tmp_path / f"{name}.joblib"))
        assert "\n" not in str(found.value)


def test_settings_of_an_xgboost_file_are_those_of_its_training(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    model = xgboost.XGBClassifier(n_estimators=7, max_depth=2, learning_rate=0.2, reg_lambda=3.0)
    model.fit(POINTS, (LABELS == "benign").astype(int))
    model.save_model(tmp_path / "model.json")
    read = read_estimator(str(tmp_path / "model.json"))
    wanted = {"n_estimators": 7, "max_depth": 2, "learning_rate": 0.2, "reg_lambda": 3.0}
    assert {name: pytest.approx(read.get_params()[name]) for name in wanted} == wanted
    assert np.allclose(read.predict_proba(POINTS), model.predict_proba(POINTS))
