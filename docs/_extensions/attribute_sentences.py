"""Docstrings of attributes as they are: napoleon takes what stands before a colon for a type, which is in the annotation here."""

BEFORE, AFTER = 499, 501
"""Priorities around that of napoleon's listener, 500."""


def setup(app):
    """Keep a docstring before napoleon reads it, and put it back where a type came out."""
    kept = {}

    def keep(app, what, name, thing, options, lines):
        kept[name] = list(lines)

    def put_back(app, what, name, thing, options, lines):
        if any(line.startswith(":type:") for line in lines):
            lines[:] = kept[name]

    app.connect("autodoc-process-docstring", keep, priority=BEFORE)
    app.connect("autodoc-process-docstring", put_back, priority=AFTER)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
