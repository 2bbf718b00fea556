"""Backends of the vLLM engine: vLLM in this process, or a vLLM server."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from agentic_trl.rollout.engines.vllm.engine import Output, Prompt


class ColocatedBackend:
    """vLLM in this process: outputs come as soon as they end, while others go on."""

    def __init__(
        self, llm: Any, make_parameters: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> None:
        """Bind vLLM.

        Args:
            llm: A ``vllm.LLM``.
            make_parameters: ``vllm.SamplingParams``.
            arguments: Of ``sampling_arguments``.
        """
        self._llm = llm
        self._make = make_parameters
        # Text is made for stop strings only.
        self._arguments = {**arguments, "detokenize": "stop" in arguments}
        self._open: dict[str, tuple[str, Prompt]] = {}

    def ask(self, prompts: Sequence[Prompt]) -> None:
        """Queue prompts."""
        if not prompts:
            return
        names = self._llm.enqueue(
            [{"prompt_token_ids": list(one.ids)} for one in prompts],
            [self._make(**self._arguments, max_tokens=q.limit, seed=q.seed) for q in prompts],
            use_tqdm=False,
        )
        for name, prompt in zip(names, prompts, strict=True):
            # Outputs come under the number that vLLM made the name of, before its random suffix.
            self._open[name.partition("-")[0]] = (name, prompt)

    def outputs(self) -> list[Output]:
        """Step the engine until a response ends."""
        while self._open:
            done = [one for one in self._llm.llm_engine.step() if one.finished]
            if done:
                return [self._output(one) for one in done]
        return []

    def clear(self) -> None:
        """Abort what is still running."""
        if self._open:
            names = [name for name, _ in self._open.values()]
            self._llm.llm_engine.abort_request(names, internal=True)
        self._open = {}

    def _output(self, output: Any) -> Output:
        _, prompt = self._open.pop(output.request_id)
        (completion,) = output.outputs
        ids = tuple(completion.token_ids)
        logprobs = tuple(
            float(one[token].logprob) for one, token in zip(completion.logprobs, ids, strict=True)
        )
        return Output(rank=prompt.rank, episode=prompt.episode, ids=ids, logprobs=logprobs)


class ServerBackend:
    """A vLLM server, asked through TRL's client, each prompt in a call of its own."""

    def __init__(self, client: Any, arguments: Mapping[str, Any], *, calls: int) -> None:
        """Bind a client.

        Args:
            client: A ``VLLMClient`` of TRL.
            arguments: Of ``sampling_arguments``.
            calls: Calls in flight at a time.
        """
        self._client = client
        self._arguments = arguments
        self._pool = ThreadPoolExecutor(calls, thread_name_prefix="vllm")
        self._open: dict[Future[Output], None] = {}

    def ask(self, prompts: Sequence[Prompt]) -> None:
        """Send prompts."""
        self._open |= dict.fromkeys(self._pool.submit(self._call, one) for one in prompts)

    def outputs(self) -> list[Output]:
        """Wait for the next call that returns."""
        if not self._open:
            return []
        done, _ = wait(self._open, return_when=FIRST_COMPLETED)
        return [self._take(one) for one in list(self._open) if one in done]

    def clear(self) -> None:
        """Forget all calls; those that run already end by themselves."""
        for call in self._open:
            call.cancel()
        self._open = {}

    def _take(self, call: Future[Output]) -> Output:
        del self._open[call]
        return call.result()

    def _call(self, prompt: Prompt) -> Output:
        output = self._client.generate(
            prompts=[list(prompt.ids)],
            max_tokens=prompt.limit,
            generation_kwargs={**self._arguments, "seed": prompt.seed},
        )
        (ids,), (logprobs,) = output["completion_ids"], output["logprobs"]
        (tokens,) = output["logprob_token_ids"]
        sampled = tuple(
            math.nan if (value := dict(zip(names, values, strict=True))[token]) is None else value
            for token, names, values in zip(ids, tokens, logprobs, strict=True)
        )
        return Output(rank=prompt.rank, episode=prompt.episode, ids=tuple(ids), logprobs=sampled)
