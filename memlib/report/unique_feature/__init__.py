"""The page of an audit of unique features."""

from memlib.report.unique_feature.findings import Boundary, Material
from memlib.report.unique_feature.page import build_page

__all__ = ["Boundary", "Material", "build_page"]
