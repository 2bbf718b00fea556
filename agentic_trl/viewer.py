"""A trajectory in the console."""

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from agentic_trl.types import Trajectory
from agentic_trl.user_values import cut_text, visible_text

STYLES = {"system": "dim", "user": "cyan", "assistant": "green"}
"""Colour of the roles that have one."""


def _text(content: object) -> str:
    """Return the content of a message as text; that of a tool call may be missing, or be parts."""
    return content if isinstance(content, str) else "" if content is None else repr(content)


def _said(message: Mapping[str, Any]) -> str:
    """Return the reasoning, the text and the calls of a message, a line each."""
    functions = [one.get("function", one) for one in message.get("tool_calls") or ()]
    calls = [f"{one.get('name')}({json.dumps(one.get('arguments'))})" for one in functions]
    parts = [_text(message.get("reasoning_content")), _text(message.get("content")), *calls]
    return "\n".join(part for part in parts if part)


def render_trajectory(trajectory: Trajectory) -> RenderableType:
    """Return something that ``rich.print`` shows.

    Returns:
        The conversation with the reward, the penalty and the policy of each turn and the way it ended. Text is shown as it is, a
        message of more than ``LONGEST_SHOWN`` characters in part: markup has no effect and control characters are escaped.
    """
    parts: list[RenderableType] = []
    turns = {turn.message: turn for turn in trajectory.turns}
    for index, message in enumerate(trajectory.messages):
        title = message["role"]
        if (turn := turns.get(index)) is not None:
            title += f" | reward {turn.reward:g}"
            title += f" | {len(turn.response_ids)} tokens" if turn.response_ids else ""
            title += "" if turn.valid else " | no accepted action"
            title += f" | penalty {turn.penalty:g}" if turn.penalty else ""
            said = turn.policy_version is not None
            title += f" | policy after {turn.policy_version} steps" if said else ""
        content = Text(visible_text(cut_text(_said(message))))
        head = Text(visible_text(title))
        style = STYLES.get(message["role"], "none")
        parts.append(Panel(content, title=head, title_align="left", style=style))
    end = f"{trajectory.stop} | success {trajectory.success} | score {trajectory.score:g}"
    return Group(*parts, Text(end, style="bold"))
