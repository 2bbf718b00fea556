"""The conversations of a program's episode: each request goes on from the response that it repeats furthest.

Contract:

- A request is a whole list of messages. It goes on from a response whose own request and text, as messages, are the
  beginning of the list; from the latest one of the longest. Messages are equal if role, text (but for white space at
  its ends) and calls (as JSON values) are. A response that no end-of-turn token ended may also be the beginning of
  a longer message: what the program wrote behind it is put behind its ids.
- If it is the first to go on from there, it continues the conversation, and its prompt extends that of the response
  where the template allows. Otherwise it opens a conversation, a row of its own, from the same ids.
- A list that repeats no response (the first one, a sub-agent's, a summary) opens a conversation; what it holds of
  messages that were sampled before is shown as it was then.
- Responses to equal prompts are samples of one. If something goes on from one of them, those that nothing goes on
  from are *unused*: the program threw them away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_trl.chat_messages import plain_message
from agentic_trl.rollout.text.answers import said_key
from agentic_trl.rollout.text.chat import ChatFormat, Conversation, Message, Prompt
from agentic_trl.rollout.text.parse import ParsedResponse


@dataclass(slots=True)
class _Spot:
    """A response, and what was said up to it."""

    conversation: Conversation
    """As it stands behind the response."""
    number: int
    """Its number in the episode."""
    context: tuple[int, ...]
    """Ids of the prompt."""
    length: int
    """Number of the messages up to the response."""
    followed: bool = False
    """Whether a request has gone on from here."""


class Talks:
    """All conversations of one episode."""

    def __init__(self, chat: ChatFormat, *, prefill: str = "") -> None:
        """Begin an episode.

        Args:
            chat: Format of the conversations.
            prefill: Beginning of every response that the prompt already holds.
        """
        self._chat = chat
        self._prefill = prefill
        self._spots: list[_Spot] = []
        self._nodes: dict[
            tuple[int, Any], int
        ] = {}  # beginnings of lists: a shorter one and the key of a message
        self._at: dict[int, _Spot] = {}  # the latest response behind each beginning
        self._cut: dict[int, list[_Spot]] = {}  # responses to each list that no token ended
        self._asked = 0
        self._conversations = 0
        self._length = 0
        self._context: tuple[int, ...] = ()
        self._calls = 0
        self.conversation = Conversation(chat, prefill=prefill)
        """The one that the last request belongs to."""
        self.number = 0
        """Its number."""
        self.messages: list[Message] = []
        """What was said in all of them, in the order in which it came; a list that repeats no response stands whole."""
        self.given = 0
        """How many of these stand before the first response."""
        self.place = 0
        """Index of the last response in them."""

    def ask(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Prompt:
        """Return the prompt of a request.

        Args:
            messages: Plain messages.
            tools: Schemas of functions that may be called.

        Returns:
            The prompt; ``conversation`` and ``number`` say where it belongs.

        Raises:
            TemplateError: If the template refuses the messages.
        """
        keys = [_key(one) for one in messages]
        spot, behind = self._furthest(keys, messages)
        if spot is None:
            self.conversation = Conversation(self._chat, prefill=self._prefill)
            self.conversation.know([one.conversation for one in self._spots])
        else:
            self.conversation = spot.conversation.fork(behind)
        self.conversation.calls = self._calls
        known = 0 if spot is None else spot.length
        prompt = self.conversation.prompt(messages, tools, known=known)
        self._context, self._asked = prompt.context_ids, self._node(keys)
        self._length = len(keys)
        if spot is None or spot.followed:
            self.number = self._conversations
            self._conversations += 1
            prompt = Prompt(prompt.context_ids, prompt.context_ids, extends=False)
        else:
            self.number = spot.number
        if behind:
            self.messages.append({"role": "assistant", "content": behind})
        self.messages += self.conversation.messages[known:]
        if spot is not None:
            spot.followed = True
        return prompt

    def add_response(self, ids: Sequence[int], response: ParsedResponse, sent: Message) -> None:
        """Append the response to the last request.

        Args:
            ids: The sampled ids.
            response: The same, parsed.
            sent: The message that the program was given.
        """
        plain = plain_message(sent)  # as it comes back
        self.conversation.add_response(
            ids, text=response.text, end=response.end, answer=response.answer, sent=plain
        )
        self._calls = self.conversation.calls
        self.place = len(self.messages)
        if not self._spots:
            self.given = self.place
        self.messages.append(self.conversation.messages[-1])
        spot = _Spot(self.conversation, self.number, self._context, self._length + 1)
        self._spots.append(spot)
        self._at[self._node([_key(plain)], self._asked)] = spot
        if not response.end:
            self._cut.setdefault(self._asked, []).append(spot)

    def unused(self) -> list[int]:
        """Return the numbers of the responses that the program threw away, in order."""
        taken = {spot.context for spot in self._spots if spot.followed}
        return [
            index
            for index, spot in enumerate(self._spots)
            if not spot.followed and spot.context in taken
        ]

    def _furthest(
        self, keys: Sequence[Any], messages: Sequence[Mapping[str, Any]]
    ) -> tuple[_Spot | None, str]:
        """Return the latest of the responses behind the longest beginning of a list, and what the list writes behind it."""
        found: _Spot | None = None
        written, node = "", 0
        for key, message in zip(keys, messages, strict=True):
            known = self._nodes.get((node, key))
            spot, behind = self._at.get(known or 0), ""
            if spot is None:
                spot, behind = self._begun(node, message)
            if spot is not None:
                found, written = spot, behind
            if known is None:
                break
            node = known
        return found, written

    def _begun(self, node: int, message: Mapping[str, Any]) -> tuple[_Spot | None, str]:
        """Return the latest of the longest responses to a list that a message begins with, and the rest of the message."""
        found: _Spot | None = None
        rest = ""
        for spot in self._cut.get(node, ()):
            behind = spot.conversation.behind(message)
            if behind is not None and (found is None or len(behind) <= len(rest)):
                found, rest = spot, behind
        return found, rest

    def _node(self, keys: Sequence[Any], node: int = 0) -> int:
        """Return the number of the list that has some more messages than another."""
        for key in keys:
            node = self._nodes.setdefault((node, key), len(self._nodes) + 1)
        return node


def _key(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two writings of the same message have in common: role, text, calls as JSON values."""
    return message["role"], *said_key(message)
