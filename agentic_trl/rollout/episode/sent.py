"""A response as the program gets it that asked for it by HTTP, in a rollout and of ``agentic_trl serve`` alike.

Contract:

- What was sampled behind the token that completes a stop text is not part of the response; the program gets the text
  before the stop text.
- A broken call, and a call where there are no tools, is sent as the text that it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.text.chat import ChatFormat, Conversation
from agentic_trl.rollout.text.parse import ParsedResponse, decode_pieces, parse_answer


def cut_at_stop(chat: ChatFormat, sample: Sample, stop: Sequence[str]) -> Sample:
    """Cut a sample behind the token that completes a stop text.

    Args:
        chat: Decodes the ids.
        sample: What was sampled.
        stop: The texts, none of them empty.

    Returns:
        The sample, or its beginning.
    """
    if not stop:
        return sample
    pieces = decode_pieces(chat, sample.ids)
    text = "".join(pieces)
    ends = [at + len(one) for one in stop if (at := text.find(one)) >= 0]
    if not ends:
        return sample
    length, count = 0, 0
    while length < min(ends):
        length += len(pieces[count])
        count += 1
    return Sample(ids=sample.ids[:count], logprobs=sample.logprobs[:count], truncated=False)


def read_sample(
    chat: ChatFormat,
    sample: Sample,
    conversation: Conversation,
    *,
    stop_ids: frozenset[int],
    prefill: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
    stop: Sequence[str] = (),
) -> tuple[ParsedResponse, dict[str, Any]]:
    """Read a sample, and write the message that the program gets.

    Args:
        chat: Decodes the ids and knows how the model writes calls.
        sample: What was sampled, cut.
        conversation: The conversation whose prompt was answered.
        stop_ids: Ids that end a turn.
        prefill: Beginning of every response that the prompt already holds.
        tools: Schemas of the functions that the program named.
        stop: Texts that end the response.

    Returns:
        The response, parsed, and the message: what ``ChatAnswer.of`` takes, but for the tokens of the prompt.
    """
    response = parse_answer(
        chat,
        sample.ids,
        stop_ids=stop_ids,
        prefill=prefill,
        prompt=conversation.rendered,
        tools=conversation.tools,
    )
    answer = response.answer
    assert answer is not None
    message = answer.message(conversation.calls)
    if answer.malformed or not tools:
        message |= {"content": answer.body.strip(), "tool_calls": []}
    for name in ("content", "reasoning_content"):
        message[name] = _before(message[name], stop)
    reason = "length" if sample.truncated else "stop"
    shown = zip(response.pieces, sample.logprobs, strict=False)  # the end of the turn is not
    ends = [(response.text.find(one) + len(one), one) for one in stop if one in response.text]
    return response, message | {
        "stopped": min(ends)[1] if ends else "",
        "finish_reason": "tool_calls" if message["tool_calls"] else reason,
        "completion_tokens": len(sample.ids),
        "tokens": [list(one) for one in shown],
    }


def _before(text: str, stop: Sequence[str]) -> str:
    """Return what stands before the first of some texts."""
    found = [at for one in stop if (at := text.find(one)) >= 0]
    return text[: min(found)] if found else text
