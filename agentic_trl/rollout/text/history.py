"""What part of a conversation a prompt shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentic_trl.rollout.text.chat_format import Message

History = Callable[[Sequence[Message]], Sequence[Message]]
"""Chooses the messages of the next prompt from the whole conversation."""


def full_history(messages: Sequence[Message]) -> Sequence[Message]:
    """Show the whole conversation.

    Args:
        messages: The conversation so far.
    """
    return messages


@dataclass(frozen=True, slots=True)
class WindowHistory:
    """Show the system message, the last ``turns`` turns and the current observation."""

    turns: int
    """Number of past turns (observation and response) that stay visible, 0 or more."""

    def __call__(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the visible messages.

        Args:
            messages: The conversation so far, ending with an observation.
        """
        first = 1 if messages and messages[0]["role"] == "system" else 0
        if not any(map(_is_result, messages)):
            visible = max(first, len(messages) - 1 - 2 * self.turns)
            return [*messages[:first], *messages[visible:]]
        said = [i for i in range(first, len(messages)) if messages[i]["role"] == "assistant"]
        # Each turn begins behind the response before it; results stand with the call that they answer.
        begins = [first, *(i + 1 for i in said)]
        at = max(len(begins) - 1 - self.turns, 0)
        while at and any(map(_is_result, messages[begins[at] : begins[at] + 1])):
            at -= 1
        return [*messages[:first], *messages[begins[at] :]]


def _is_result(message: Message) -> bool:
    return bool(message["role"] == "tool")
