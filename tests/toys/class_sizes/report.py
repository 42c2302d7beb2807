"""Page of the toy audit."""

import pyarrow as pa

from memlib.report.page import Content, Section, TableView


def compose(units: pa.Table) -> Content:
    """Return what the page of a run says."""
    rows = [(row["class_name"], str(row["examples"])) for row in units.to_pylist()]
    return Content([Section("Classes", TableView(("class", "examples"), rows))])
