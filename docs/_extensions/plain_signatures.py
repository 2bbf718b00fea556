"""Signatures in the words of a reader: types without their ranges, functions by their names, and ``...`` for defaults that are made anew."""

import re

RANGED = re.compile(r"~?(?:typing\.)?Annotated\[(\w+), ~?(?:[\w.]+\.)?Range\([^()]*\)\]")


def plain(text):
    """Return a signature without ranges of numbers."""
    if not text:
        return text
    return re.sub(r"<function (\w+)>", r"\1", RANGED.sub(r"\1", text)).replace("<factory>", "...")


def on_signature(app, what, name, thing, options, signature, returns):
    """Give autodoc the plain signature."""
    return plain(signature), returns


def setup(app):
    """Listen for signatures."""
    app.connect("autodoc-process-signature", on_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
