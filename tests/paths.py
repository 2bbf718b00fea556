"""Where the repository and its pages lie."""

from pathlib import Path

ROOT = Path(__file__).parent.parent

PAGES = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "PAPERS.md", "CHANGELOG.md", "SECURITY.md")
]
PAGES += [ROOT / "recipes" / "README.md", ROOT / "recipes" / "benchmarks" / "README.md"]
PAGES += sorted(
    page for page in (ROOT / "docs").glob("**/*.md") if "_build" not in page.relative_to(ROOT).parts
)
"""All pages in Markdown; those that ``make docs`` has built are none."""
