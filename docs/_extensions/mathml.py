"""Formulas as MathML, which browsers draw themselves: no script, no font and no other host."""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)


def convert(node, *, block):
    """Return the MathML of a formula; what cannot be converted is a warning, and so fails the build."""
    try:
        return tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        logger.warning("no MathML for %r: %s", node.astext(), error, location=node, type="mathml")
        return f"<code>{node.astext()}</code>"


def visit_math(translator, node):
    """Write a formula in a line.

    Raises:
        SkipNode: Always; the formula has no other parts to write.
    """
    translator.body.append(convert(node, block=False))
    raise nodes.SkipNode


def visit_math_block(translator, node):
    """Write a formula of its own.

    Raises:
        SkipNode: Always; the formula has no other parts to write.
    """
    translator.body.append(f'<div class="math">{convert(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
