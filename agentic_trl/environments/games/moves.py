"""Moves on a grid, and several of them in an action: how they are written, read and described.

The rule is that of RAGEN, mll-lab-nu/RAGEN at 20daedc (``ragen/llm_agent/ctx_manager.py`` and
``es_manager.py``, ``max_actions_per_turn`` and ``action_sep``): ``left || down``, carried out in order
until the episode ends. Moves beyond the limit are dropped. An unknown word is left out, the moves beside
it are carried out, and the action counts as invalid.
"""

from agentic_trl.environments.base import ActionFormat

MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""Change of (row, column) by move, in the order of Gymnasium's action numbers."""

SEPARATOR = "||"

_CHOICE = "left, down, right or up"


def check_actions_per_turn(actions_per_turn: int) -> None:
    """Refuse a limit below 1.

    Args:
        actions_per_turn: Most moves of an action.

    Raises:
        ValueError: If it is below 1.
    """
    if actions_per_turn < 1:
        raise ValueError(f"Got actions_per_turn={actions_per_turn}, expected 1 or more.")


def read_moves(action: str, actions_per_turn: int) -> tuple[list[str], bool]:
    """Return the moves of an action.

    Args:
        action: Text inside the action tags; moves in any case, with ``||`` between if there may be
            several.
        actions_per_turn: Most moves of an action, 1 or more.

    Returns:
        The moves to carry out, in order, and whether the action is valid: it has a move, and all that
        is within the limit are moves.
    """
    parts = action.split(SEPARATOR) if actions_per_turn > 1 else [action]
    given = [part.strip().lower() for part in parts]
    counted = [word for word in given if word][:actions_per_turn]
    moves = [word for word in counted if word in MOVES]
    return moves, bool(moves) and moves == counted


def write_moves(moves: list[str]) -> str:
    """Return the action that holds moves, in order."""
    return f" {SEPARATOR} ".join(moves)


def move_format(actions_per_turn: int) -> ActionFormat:
    """Return the format of a response.

    Args:
        actions_per_turn: Most moves of an action, 1 or more.
    """
    if actions_per_turn == 1:
        return ActionFormat(words=tuple(MOVES))
    return ActionFormat(syntax=write_moves(["move"] * actions_per_turn))


def turn_rule(actions_per_turn: int) -> str:
    """Return what may be done in a turn, for the instructions: a clause that follows "Each turn, ".

    Args:
        actions_per_turn: Most moves of an action, 1 or more.
    """
    if actions_per_turn == 1:
        return "move one cell"
    return (
        f"make up to {actions_per_turn} moves of one cell, each {_CHOICE}, with {SEPARATOR} between"
    )


def refusal(actions_per_turn: int) -> str:
    """Return the line that says why an action was invalid.

    Args:
        actions_per_turn: Most moves of an action, 1 or more.
    """
    several = f", up to {actions_per_turn} with {SEPARATOR} between" if actions_per_turn > 1 else ""
    return f"invalid action: answer {_CHOICE}{several}"


def offset(down: int, right: int) -> str:
    """Return a distance in words, for example ``2 down, 1 right``; empty for none.

    Args:
        down: Rows down, negative for up.
        right: Columns to the right, negative for left.
    """
    parts = [(down, "down" if down > 0 else "up"), (right, "right" if right > 0 else "left")]
    return ", ".join(f"{abs(number)} {word}" for number, word in parts if number)
