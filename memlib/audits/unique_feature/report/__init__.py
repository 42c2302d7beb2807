"""Page of the unique-feature audit."""

from memlib.audits.unique_feature.report.findings import Boundary, Material
from memlib.audits.unique_feature.report.page import build_page

__all__ = ["Boundary", "Material", "build_page"]
