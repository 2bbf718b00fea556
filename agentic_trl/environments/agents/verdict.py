"""What an agent says of its episode at the end: a score, or a dictionary with it."""

import numbers
from collections.abc import Mapping
from typing import Any

from agentic_trl.endpoint.refusals import RefusedError
from agentic_trl.endpoint.session import Verdict
from agentic_trl.endpoint.values import parse_json
from agentic_trl.user_values import quoted, read_reward, read_success


def read_verdict(value: Any, where: str) -> Verdict | None:
    """Return what an agent said.

    Args:
        value: A score; a dictionary with ``score``, ``success`` and named rewards, each of which may be missing, and of
            which the score is the sum where it is missing itself; or ``None``.
        where: Its source, the subject of the error.

    Returns:
        The verdict; ``None`` if nothing was said.

    Raises:
        TypeError: If it is anything else.
        ValueError: If a number is not finite, or too large.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        rest = {str(name): one for name, one in value.items() if name not in ("score", "success")}
        rewards = {name: read_reward(one, f"{name!r} of {where}") for name, one in rest.items()}
        score = value.get("score")
        if score is None and not rewards:
            raise TypeError(
                f"{where} is {quoted(value)}, expected a 'score' or named rewards in it. Add the score."
            )
        total = (
            sum(rewards.values()) if score is None else read_reward(score, f"The score of {where}")
        )
        return Verdict(score=total, success=read_success(value, where), rewards=rewards)
    if isinstance(value, bool) or (
        not isinstance(value, numbers.Real) and not hasattr(value, "item")
    ):
        raise TypeError(
            f"{where} is {quoted(value)}, expected a score (a number), or a dictionary with 'score', 'success' and named "
            "rewards. Return one of them."
        )
    return Verdict(score=read_reward(value, where))


def last_line(output: bytes) -> str:
    """Return the last line of an output that is not empty; the empty text if there is none.

    Args:
        output: What a program wrote, or its end.
    """
    lines = output.decode("utf-8", "replace").rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def read_line(line: str) -> Any:
    """Return the JSON value of the last line that a program wrote.

    Args:
        line: The line; an empty one says nothing.

    Returns:
        The value, or ``None``.

    Raises:
        ValueError: If it is no JSON.
    """
    try:
        return parse_json(line, "line") if line else None
    except RefusedError:
        raise ValueError(
            f"The last line that the agent's program wrote is {quoted(line)}, expected its score as JSON, such as 0.5 or "
            '{"score": 0.5, "success": true}. Print it last, or post it.'
        ) from None
