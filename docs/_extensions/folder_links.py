"""Links to folders of the repository, which are no pages, as plain text; links to its files are downloads by themselves."""

from pathlib import Path

from docutils import nodes
from sphinx import addnodes


def unlink(app, doctree):
    """Leave the text alone of a link to a folder."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link.get("reftype") == "myst" and not link.get("refdomain"):
            here = Path(app.srcdir, link["refdoc"]).parent
            if (here / link["reftarget"]).is_dir():
                link.replace_self(nodes.literal(text=link.astext()))


def setup(app):
    """Register the transformation."""
    app.connect("doctree-read", unlink)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
