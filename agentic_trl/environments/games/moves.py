"""Several moves in an action: how they are written, read and described.

The rule is that of RAGEN, mll-lab-nu/RAGEN at 20daedc (``ragen/llm_agent/ctx_manager.py`` and
``es_manager.py``, ``max_actions_per_turn`` and ``action_sep``): ``left || down``, carried out in order
until the episode ends. Moves beyond the limit are dropped. An unknown word is left out, the moves beside
it are carried out, and the action counts as invalid.
"""

from collections.abc import Collection

from agentic_trl.environments.base import ActionFormat

SEPARATOR = "||"


def check_actions_per_turn(actions_per_turn: int) -> None:
    """Refuse a limit below 1.

    Args:
        actions_per_turn: Most moves of an action.

    Raises:
        ValueError: If it is below 1.
    """
    if actions_per_turn < 1:
        raise ValueError(f"Got actions_per_turn={actions_per_turn}, expected 1 or more.")


def read_moves(
    action: str, words: Collection[str], actions_per_turn: int
) -> tuple[list[str], bool]:
    """Return the moves of an action.

    Args:
        action: Text inside the action tags; moves in any case, with ``||`` between if there may be
            several.
        words: The legal moves, in lower case.
        actions_per_turn: Most moves of an action, 1 or more.

    Returns:
        The moves to carry out, in order, and whether the action is valid: it has a move, and all that
        is within the limit are moves.
    """
    parts = action.split(SEPARATOR) if actions_per_turn > 1 else [action]
    given = [part.strip().lower() for part in parts]
    counted = [word for word in given if word][:actions_per_turn]
    moves = [word for word in counted if word in words]
    return moves, bool(moves) and moves == counted


def write_moves(moves: list[str]) -> str:
    """Return the action that holds moves, in order.

    Args:
        moves: Legal moves.
    """
    return f" {SEPARATOR} ".join(moves)


def move_format(words: tuple[str, ...], actions_per_turn: int) -> ActionFormat:
    """Return how an answer is written.

    Args:
        words: The legal moves.
        actions_per_turn: Most moves of an action, 1 or more.
    """
    if actions_per_turn == 1:
        return ActionFormat(words=words)
    return ActionFormat(syntax=write_moves(["move"] * actions_per_turn))


def turn_rule(words: tuple[str, ...], actions_per_turn: int) -> str:
    """Return what may be done in a turn, for the instructions: a clause that follows "Each turn, ".

    Args:
        words: The legal moves.
        actions_per_turn: Most moves of an action, 1 or more.
    """
    if actions_per_turn == 1:
        return "move one cell"
    return f"make up to {actions_per_turn} moves of one cell, each {_either(words)}, with {SEPARATOR} between"


def refusal(words: tuple[str, ...], actions_per_turn: int) -> str:
    """Return the line that says why an action was invalid.

    Args:
        words: The legal moves.
        actions_per_turn: Most moves of an action, 1 or more.
    """
    several = f", up to {actions_per_turn} with {SEPARATOR} between" if actions_per_turn > 1 else ""
    return f"invalid action: answer {_either(words)}{several}"


def _either(words: tuple[str, ...]) -> str:
    """Return words as alternatives: ``left, down or up``."""
    return f"{', '.join(words[:-1])} or {words[-1]}"
