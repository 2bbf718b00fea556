"""Refusals of requests: a status, a code for programs and a sentence for people, in the shape that the SDKs show."""

from typing import Any

EPISODE_ENDED = "episode_ended"
"""Code of a request after the end of its episode."""

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""Code of a request whose prompt, or whose answer, has no room in the context."""

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
}


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(
        self, code: str, sentence: str, *, status: int = 400, passes: bool = False
    ) -> None:
        """Word a refusal.

        Args:
            code: A word for programs.
            sentence: What was got, what was expected, what to change.
            status: Status of HTTP.
            passes: Whether the same request may be answered later.
        """
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.status = status
        self.passes = passes

    @property
    def headers(self) -> dict[str, str]:
        """Tell the SDKs whether the same request again is refused again."""
        return {"x-should-retry": "true" if self.passes else "false"}

    def as_openai(self) -> dict[str, Any]:
        """Return the body that OpenAI's SDK reads."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.sentence, "type": kind, "param": None, "code": self.code}}

    def as_anthropic(self) -> dict[str, Any]:
        """Return the body that Anthropic's SDK reads."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        return {
            "type": "error",
            "error": {"type": kind, "message": self.sentence, "code": self.code},
        }


class InvalidRequestError(RefusedError):
    """A request that is none, or asks for what is not served."""

    def __init__(self, sentence: str) -> None:
        """Word a refusal.

        Args:
            sentence: What was got, what was expected, what to change.
        """
        super().__init__("invalid_request", sentence)
