"""Sphinx settings."""

import sys
from pathlib import Path

from sojourn.version import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "Sojourn"
author = "the Sojourn developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "readable", "sessions"]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Sojourn {__version__}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
html_show_copyright = False
html_show_sphinx = False
html_domain_indices = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 72
default_role = "code"
smartquotes = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
