"""Numbers are printed as what they are: no p-value is 0."""

import pytest

from memlib.report.format import format_p, say_p


@pytest.mark.parametrize(
    ("value", "cell", "said"),
    [
        (0.0349, "0.035", "p = 0.035"),
        (1e-9, "1e-09", "p = 1e-09"),
        (2.3e-14, "2.3e-14", "p = 2.3e-14"),
        (0.0, "<1e-15", "p < 1e-15"),
    ],
)
def test_p_values_below_the_rounding_error_are_not_printed_as_zero(value: float, cell: str, said: str) -> None:
    assert format_p(value) == cell
    assert say_p(value) == said
