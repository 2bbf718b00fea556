"""``agentic_trl serve``: answer requests of OpenAI's and Anthropic's clients with a model."""

import argparse
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from agentic_trl.assets import embedded
from agentic_trl.command_line import json_object, naming
from agentic_trl.endpoint.service import Service
from agentic_trl.environments.adapters.common import need
from agentic_trl.number_ranges import Count, Positive, Range
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.episode.independent import Serving
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.trainers.config.arguments import settings_for
from agentic_trl.trainers.config.ranges import check_numbers
from agentic_trl.trainers.evaluate import local_player
from agentic_trl.user_values import quoted

API_KEY = "AGENTIC_TRL_API_KEY"
"""Environment variable of the key."""

Port = Annotated[int, Range(0, 65535, "a port, 0 to 65535")]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(prog="agentic_trl serve", description=__doc__)
    parser.add_argument(
        "--model", default="tiny", help="path or name; 'tiny' and 'tiny-tools' are embedded"
    )
    parser.add_argument("--tokenizer", default=None, help="path or name; unset is the model's own")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument(
        "--api_key", default=None, help=f"unset is {API_KEY}, or else a random one that is printed"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--top_p", type=float, default=1.0, help="1 is all tokens")
    parser.add_argument("--top_k", type=int, default=0, help="0 is all tokens")
    parser.add_argument("--max_tokens_per_turn", type=int, default=512)
    parser.add_argument("--max_context_tokens", type=int, default=None, help="unset is the model's")
    parser.add_argument(
        "--engine_max_cache_tokens", type=int, default=None, help="most tokens of the cache"
    )
    parser.add_argument("--stop_strings", nargs="+", default=[], help="texts that end an answer")
    parser.add_argument("--response_prefill", default="", help="beginning of every answer")
    parser.add_argument(
        "--template_kwargs", type=json_object, default={}, help="JSON object for the chat template"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=8, help="requests answered together")
    parser.add_argument("--engine_probe", action=argparse.BooleanOptionalAction, default=True)
    return parser


def run(words: Sequence[str]) -> int:
    """Serve until Ctrl-C.

    Args:
        words: The flags.

    Returns:
        Exit status 0.

    Raises:
        OSError: If the address cannot be listened on, or the model cannot be loaded.
        ValueError: If a flag is wrong, or the model cannot be sampled right.
    """
    options = parser().parse_args(words)
    key, shown = _key(options.api_key)
    settings = settings_for(
        None,
        max_tokens_per_turn=options.max_tokens_per_turn,
        max_context_tokens=options.max_context_tokens,
        sampling=Sampling(
            temperature=options.temperature, top_p=options.top_p, top_k=options.top_k
        ),
        stop_strings=tuple(options.stop_strings),
        response_prefill=options.response_prefill,
        engine_max_cache_tokens=options.engine_max_cache_tokens,
        template_kwargs=options.template_kwargs,
    )
    try:
        with _ended_by_signals(), naming(options.model):
            serve(
                options.model,
                settings,
                tokenizer=options.tokenizer,
                host=options.host,
                port=options.port,
                key=key,
                shown_key=shown,
                seed=options.seed,
                batch_size=options.batch_size,
                engine_probe=options.engine_probe,
            )
    except KeyboardInterrupt:
        print("Ended.", flush=True)
    return 0


def serve(
    model: str,
    settings: RolloutSettings,
    *,
    tokenizer: str | None,
    host: str,
    port: Port,
    key: str,
    shown_key: str,
    seed: Count,
    batch_size: Positive,
    engine_probe: bool,
) -> None:
    """Serve a model until the process is interrupted.

    Args:
        model: Path or name of a model or of a PEFT adapter, or of an embedded one.
        settings: How responses are sampled, and the limits of each.
        tokenizer: Name of the tokenizer; ``None`` for the model's own.
        host: Address to listen on.
        port: Its port; 0 for a free one.
        key: What clients have to name themselves with.
        shown_key: How the key is printed.
        seed: Seed of the sampling.
        batch_size: Requests that are answered together.
        engine_probe: Whether the model is checked first.
    """
    check_numbers(serve, {"port": port, "seed": seed, "batch_size": batch_size})
    endpoint = need("agentic_trl.endpoint.server", "agents").Endpoint(host, port)
    service = Service(key, model=model)
    try:
        endpoint.add(service)  # what is asked before the model is there waits for it
        serving = _serving(
            model, settings, tokenizer=tokenizer, service=service, probe=engine_probe
        )
        serving.seed, serving.at_once = seed, batch_size
        print(_greeting(endpoint, model, shown_key), flush=True)
        serving.run()
    finally:
        endpoint.close()


def _serving(
    name: str, settings: RolloutSettings, *, tokenizer: str | None, service: Service, probe: bool
) -> Serving:
    """Load a model, and put it behind a service."""
    model, manager = local_player(embedded(name), settings, {}, tokenizer=tokenizer, probe=probe)
    model.eval()
    return Serving(
        service=service,
        engine=manager.engine(model, settings.sampling),
        chat=manager.chat,
        stop_ids=manager.stop_ids,
        limits=manager.settings.limits,
        prefill=settings.response_prefill,
    )


def _greeting(endpoint: Any, model: str, key: str) -> str:
    body = '{"messages": [{"role": "user", "content": "Hello"}]}'
    return "\n".join(
        [
            f"{model} answers at",
            f"  base_url  {endpoint.base_url} (OpenAI), {endpoint.url} (Anthropic)",
            f"  api_key   {key}",
            f"curl {endpoint.base_url}/chat/completions -H \"authorization: Bearer {key}\" -d '{body}'",
            "Ctrl-C ends it.",
        ]
    )


def _key(given: str | None) -> tuple[str, str]:
    """Return the key, and how it is printed: not if it is the environment's.

    Raises:
        ValueError: If it is none.
    """
    said = os.environ.get(API_KEY)
    key = given if given is not None else said
    if key is None:
        key = need("agentic_trl.endpoint.server", "agents").new_key()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(
            f"api_key: got {quoted(given) if given is not None else 'one of ' + API_KEY + ' that is none'}, expected visible ASCII characters without a space. Give another, or none for a "
            f"random one (--api_key, or {API_KEY})."
        )
    return key, key if given is not None or said is None else f"${API_KEY}"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise ``KeyboardInterrupt``, also where a shell started this in the background."""
    before: Mapping[int, Any] = {
        one: signal.signal(one, signal.default_int_handler)
        for one in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
