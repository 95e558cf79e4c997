"""Sphinx settings."""

from sojourn.version import __version__

project = "Sojourn"
author = "the Sojourn developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Sojourn {__version__}"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "code"
