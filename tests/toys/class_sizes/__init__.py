"""Class sizes: how unevenly a source's examples spread over its classes; a toy that shows what an audit is made of."""

from collections.abc import Mapping
from typing import Any

from memlib.audits.class_sizes.recipe import Recipe
from memlib.audits.class_sizes.tables import UNITS

from memlib.audits.base import Audit
from memlib.tables import COMMON


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    return "class" not in params


AUDIT = Audit(
    name="class-sizes",
    question="How unevenly are the examples spread over the classes?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS},
    in_brief=_in_brief,
)
