"""The embedded table against scikit-learn's own."""

import numpy as np
from sklearn.datasets import load_breast_cancer

from memlib.data.data_summary import preview
from memlib.data.datasets import open_source
from memlib.specs import DataSpec


def test_rows_are_standardized_points_with_their_classes() -> None:
    source = open_source(DataSpec.model_validate({"source": {"kind": "breast_cancer"}}).source)
    examples = [source[row] for row in range(len(source))]
    points = np.stack([example.image for example in examples])
    bunch = load_breast_cancer()
    assert points.shape == (569, 30)
    assert points.dtype == np.float32
    assert source.point_dim == 30  # type: ignore[attr-defined]
    assert np.allclose(points.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(points * bunch.data.std(axis=0) + bunch.data.mean(axis=0), bunch.data, rtol=1e-4, atol=1e-4)
    names = [source.class_names[example.label] for example in examples]
    assert names == [str(bunch.target_names[label]) for label in bunch.target]
    assert names.count("malignant") == 212
    assert len({example.example_id for example in examples}) == 569
    assert (
        source.content_digest()
        == open_source(DataSpec.model_validate({"source": {"kind": "breast_cancer"}}).source).content_digest()
    )


def test_a_preview_gives_the_number_of_coordinates() -> None:
    source = open_source(DataSpec.model_validate({"source": {"kind": "breast_cancer"}}).source)
    assert preview(source) == ["569 examples of 2 classes; in a sample of 50: points with 30 coordinates"]
