"""Settings of the documentation site: `make docs` builds it into docs/_build/html; it needs no network, also when read."""

import sys
from pathlib import Path

import memlib

project = "memlib"
author = "the memlib authors"
copyright = "the memlib authors, Apache License 2.0"
version = release = memlib.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
INCLUDED = ("counts", "decided", "faults-matrix", "validity-parts", "validity-words")  # in other pages
exclude_patterns = ["_build", *(f"evidence/made/{name}.md" for name in INCLUDED)]
html_static_path = ["filter.js"]
html_js_files = ["filter.js"]
html_theme = "furo"
html_title = "memlib"
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks keep the outputs of their last execution; tests/docs execute them

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "code"  # of text between single backquotes in docstrings
copybutton_exclude = ".linenos, .gp, .go"
nitpicky = False


def setup(app: object) -> None:
    """Make the pages of the evidence before Sphinx looks for pages."""
    root = Path(__file__).parents[1]
    sys.path.insert(0, str(root))
    from benchmarks.evidence_pages import write_pages

    write_pages(root)
