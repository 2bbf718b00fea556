"""Mermaid's flowcharts as pictures that are drawn here, for readers without a network; other diagrams stay text.

A node is ``name`` or ``name[text]``, an arrow ``a --> b`` or ``a -->|text| b``. A node lies one level below the deepest one that
points to it; the nodes of a level are ordered by the mean place of those.
"""

import re
from html import escape

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

NODE = r"(\w+)(?:[\[\(]+\"?([^\]\)\"]+)\"?[\]\)]+)?"
ARROW = re.compile(rf"^{NODE}\s*-->\s*(?:\|\"?([^|\"]+)\"?\|\s*)?{NODE}$")
ALONE = re.compile(rf"^{NODE}$")
LETTER, HEIGHT, GAP, ROW = 7.2, 26, 44, 74


def read(text):
    """Return the labels of nodes and the arrows of a flowchart, or ``None`` if it is none that is drawn here."""
    head, *lines = [line.strip().rstrip(";") for line in text.strip().splitlines()]
    if not re.fullmatch(r"(flowchart|graph) (TD|TB|LR)", head):
        return None
    labels, arrows = {}, []
    for line in filter(None, lines):
        alone, arrow = ALONE.match(line), ARROW.match(line)
        if alone:
            named = [alone.groups()]
        elif arrow:
            named = [arrow.group(1, 2), arrow.group(4, 5)]
            arrows.append((arrow[1], arrow[4], arrow[3] or ""))
        else:
            return None
        for name, label in named:
            labels[name] = label or labels.get(name, name)
    return labels, arrows


def levels(labels, arrows):
    """Return the names of each level, or ``None`` if arrows go in a circle."""
    depth = dict.fromkeys(labels, 0)
    for _ in labels:
        deeper = {b: depth[a] + 1 for a, b, _ in arrows if depth[a] + 1 > depth[b]}
        if not deeper:
            break
        depth.update(deeper)
    else:
        return None
    rows = [
        [one for one in labels if depth[one] == level] for level in range(max(depth.values()) + 1)
    ]
    for row, above in zip(rows[1:], rows, strict=False):
        place = {name: index / len(above) for index, name in enumerate(above)}
        parents = {one: [place[a] for a, b, _ in arrows if b == one and a in place] for one in row}
        row.sort(key=lambda one: sum(parents[one]) / len(parents[one]))
    return rows


def draw(labels, arrows, rows):
    """Return the picture."""
    wide = {name: LETTER * len(label) + 20 for name, label in labels.items()}
    across = [sum(wide[one] + GAP for one in row) - GAP for row in rows]
    size = max(across) + 8, len(rows) * ROW - ROW + HEIGHT + 8
    middle, parts = {}, []
    for level, row in enumerate(rows):
        left = (size[0] - across[level]) / 2
        for name in row:
            middle[name] = left + wide[name] / 2, level * ROW + 4 + HEIGHT / 2
            parts.append(
                f'<rect x="{left:.0f}" y="{level * ROW + 4}" width="{wide[name]:.0f}" height="{HEIGHT}" rx="5"/>'
                f'<text x="{middle[name][0]:.0f}" y="{middle[name][1] + 4.5:.0f}">{escape(labels[name])}</text>'
            )
            left += wide[name] + GAP
    lines = []
    for a, b, label in arrows:
        (x, y), (to, end) = middle[a], middle[b]
        y, end = y + HEIGHT / 2, end - HEIGHT / 2 - 5
        lines.append(
            f'<path class="arrow" d="M{x:.0f},{y:.0f} C{x:.0f},{y + 30:.0f} {to:.0f},{end - 30:.0f} '
            f'{to:.0f},{end:.0f}" marker-end="url(#point)"/>'
        )
        if label:
            lines.append(
                f'<text x="{(x + to) / 2:.0f}" y="{(y + end) / 2:.0f}">{escape(label)}</text>'
            )
    point = (
        '<defs><marker id="point" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    )
    inner = point + "".join(lines + parts)
    return (
        f'<svg class="flowchart" role="img" viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" '
        f'width="{size[0]:.0f}" height="{size[1]:.0f}">{inner}</svg>'
    )


class Mermaid(SphinxDirective):
    """A block in Mermaid's language."""

    has_content = True

    def run(self):
        """Return the picture, or the text."""
        text = "\n".join(self.content)
        chart = read(text)
        rows = levels(*chart) if chart else None
        if rows:
            return [nodes.raw("", draw(*chart, rows), format="html")]
        return [nodes.literal_block(text, text, language="text")]


def setup(app):
    """Register the directive."""
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
