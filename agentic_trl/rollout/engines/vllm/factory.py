"""What makes vLLM engines: in the trainer, and in a process without a model that asks the same server."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import StopStringCriteria

from agentic_trl.rollout.engines.base import EngineFactory, Sampling
from agentic_trl.rollout.engines.vllm.backends import ServerBackend
from agentic_trl.rollout.engines.vllm.engine import Backend, Ranks, VLLMEngine, sampling_arguments

SERVER_CALLS = 64
"""Calls to a server in flight at a time: the connections that TRL's client keeps open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How responses end, and how many are asked for at a time."""

    tokenizer: Any
    """Tokenizer of the policy."""
    stop_ids: frozenset[int]
    """Token ids that end a response."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a response."""
    slots: int | None = None
    """Episodes in flight at a time; ``None`` for any number."""

    def factory(
        self,
        backend: Callable[[dict[str, Any]], Backend | None],
        *,
        ranks: Ranks | None = None,
    ) -> EngineFactory:
        """Return what makes engines.

        Args:
            backend: Makes the backend for sampling arguments; see ``VLLMEngine``.
            ranks: Ranks that ask together; ``None`` for this process alone.
        """
        strings = list(self.stop_strings)
        stop_text = StopStringCriteria(self.tokenizer, strings) if strings else None

        def make(model: Any, sampling: Sampling) -> VLLMEngine:
            arguments = sampling_arguments(
                sampling, stop_ids=self.stop_ids, stop_strings=self.stop_strings
            )
            return VLLMEngine(
                backend(arguments),
                stop_ids=self.stop_ids,
                stop_text=stop_text,
                ranks=ranks,
                slots=self.slots,
            )

        return make


@dataclass(frozen=True, slots=True, kw_only=True)
class AsksServer:
    """Makes what makes engines on a server, in a process of its own, which never touches the server's weights."""

    client: Callable[..., Any]
    """TRL's ``VLLMClient``."""
    url: str
    """Address of the server."""
    timeout: float
    """Seconds that the server may take to be there."""
    asking: Asking
    """How responses end."""

    def __call__(self) -> EngineFactory:
        """Connect to the server."""
        client = self.client(base_url=self.url, connection_timeout=self.timeout)
        return self.asking.factory(
            lambda arguments: ServerBackend(client, arguments, calls=SERVER_CALLS)
        )
