"""Settings of the documentation; ``make docs`` builds it.

The root of the repository is the source folder, so that links between the pages of ``docs`` and ``PAPERS.md``, ``README.md`` or the
recipes are the same here and where the files are read as Markdown. What the pages need beyond Sphinx stands in
``docs/_extensions``; nothing is loaded from another host.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]

from agentic_trl import __version__

project = "agentic_trl"
author = "the authors of agentic_trl"
version = release = __version__
root_doc = "docs/index"
language = "en"
smartquotes = False  # quotes in help texts are code

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "attribute_sentences",
    "config_fields",
    "folder_links",
    "mathml",
    "mermaid",
    "plain_signatures",
]
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "PAPERS.md",
    "SECURITY.md",
    "recipes/README.md",
    "recipes/benchmarks/README.md",
]
exclude_patterns = [".*", "agentic_trl", "dist", "docs/_build", "examples", "outputs", "tests"]

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Source", "notes_style")]
add_module_names = False

html_theme = "furo"
html_title = f"agentic_trl {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
