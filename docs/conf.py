"""The site of the documentation: `make docs` builds it, and a warning is an error."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "carrier"
author = "The carrier authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "plain_docstrings", "statement_pages"]
exclude_patterns = ["build", "notebooks"]
smartquotes = False
html_theme = "furo"
html_title = "carrier"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
myst_heading_anchors = 3
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
