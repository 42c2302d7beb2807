"""Page of the unique-feature audit."""

from memlib.audits.unique_feature.report.page import compose

__all__ = ["compose"]
