"""The routes: who asks, what is asked, and how the answer is written."""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentic_trl.endpoint.asks import Asks
from agentic_trl.endpoint.http import AnswerResponse, read_body, wait_for_answer
from agentic_trl.endpoint.protocols import anthropic, chat, responses
from agentic_trl.endpoint.protocols.events import encode
from agentic_trl.endpoint.refusals import InvalidRequestError, RefusedError
from agentic_trl.endpoint.values import FLAG, NUMBER, Fields, parse_object

logger = logging.getLogger(__name__)

Find = Callable[[str], Asks | None]
"""Returns the session or service of a key, or ``None``."""

PROTOCOLS: dict[str, ModuleType] = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/messages": anthropic,
}
"""The interfaces by their paths."""

SERVED = (*PROTOCOLS, "/v1/models", "/v1/sessions/rewards", "/health")
"""All paths."""

REWARDS = Fields(served={"reward": NUMBER, "score": NUMBER, "success": FLAG})
"""The fields of a report of rewards."""


def make_app(find: Find) -> Starlette:
    """Return the application.

    Args:
        find: Returns the session of a key.
    """

    def guarded(act: Callable[[Request, Asks], Awaitable[Response]]) -> Any:
        async def serve(request: Request) -> Response:
            try:
                return await act(request, _session_of(request, find))
            except RefusedError as refusal:
                return _refused(request, refusal)
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it
            except Exception:
                logger.exception("The endpoint failed at %s.", request.url.path)
                sentence = (
                    "The endpoint failed: got a request that it cannot serve. The log says why."
                )
                return _refused(request, RefusedError("internal_error", sentence, status=500))

        return serve

    routes = [Route("/health", _health, methods=["GET"])]
    routes += [Route(path, guarded(_ask), methods=["POST"]) for path in PROTOCOLS]
    routes += [
        Route("/v1/models", guarded(_models), methods=["GET"]),
        Route("/v1/sessions/rewards", guarded(_report), methods=["POST"]),
        Route("/{path:path}", _AnyMethod(guarded(_unknown))),
    ]
    return Starlette(routes=routes)


class _AnyMethod:
    """Serves a path whatever the method; starlette's functions have one."""

    def __init__(self, serve: Callable[[Request], Awaitable[Response]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._serve(Request(scope, receive, send))
        await response(scope, receive, send)


async def _health(request: Request) -> Response:
    del request
    return JSONResponse({"status": "ok"})


async def _models(request: Request, session: Asks) -> Response:
    del request
    name = session.model
    model = {"id": name, "object": "model", "created": 0, "owned_by": "agentic_trl"}
    model |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    page = {"has_more": False, "first_id": name, "last_id": name}
    return JSONResponse({"object": "list", "data": [model], **page})


async def _ask(request: Request, session: Asks) -> Response:
    body = await read_body(request)
    protocol = PROTOCOLS[request.url.path]
    asked = protocol.read(parse_object(body, "The body"), _retry_of(request))
    digest = hashlib.sha256(request.url.path.encode() + b"\0" + body).digest()
    ask = session.ask(asked, digest)
    answer = await wait_for_answer(request, ask)
    try:
        if asked.stream:
            parts = [encode(one) for one in protocol.events(asked, answer)]
            return AnswerResponse(ask, parts, "text/event-stream")
        written = JSONResponse(protocol.whole(asked, answer)).body
        return AnswerResponse(ask, [bytes(written)], "application/json")
    except BaseException:
        ask.lost()
        raise


async def _report(request: Request, session: Asks) -> Response:
    given = REWARDS.read(parse_object(await read_body(request), "The body"))
    if not {"reward", "score"} & set(given):
        raise InvalidRequestError(
            "Got neither `reward` nor `score`, expected {'reward': 0.5} for the turn under way, or {'score': 1.0, 'success': "
            "true} for the episode. Give one."
        )
    try:
        session.report(**given)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(str(error)) from None
    return JSONResponse({"accepted": True})


async def _unknown(request: Request, session: Asks) -> Response:
    del session
    raise RefusedError(
        "not_found",
        f"Got {request.method} {request.url.path}, which is not served, expected one of {', '.join(SERVED)}. Correct the "
        "base URL: OpenAI's ends in /v1, Anthropic's does not.",
        status=404,
    )


def _session_of(request: Request, find: Find) -> Asks:
    """Return the session of a request.

    Raises:
        RefusedError: If its key is none.
    """
    said = request.headers.get("authorization", "")
    kind, _, key = said.partition(" ")
    keys = [key.strip()] if kind.lower() == "bearer" else []
    for one in (request.headers.get("x-api-key", ""), *keys):
        session = find(one) if one else None
        if session is not None:
            return session
    raise RefusedError(
        "invalid_api_key",
        "Got a key that is none, expected that of an episode: `api_key` of the endpoint, or OPENAI_API_KEY or ANTHROPIC_API_KEY "
        "of the agent's environment; or the key that `agentic_trl serve` was started with. Take it.",
        status=401,
    )


def _refused(request: Request, refusal: RefusedError) -> Response:
    theirs = request.url.path.startswith("/v1/messages")
    body = refusal.as_anthropic() if theirs else refusal.as_openai()
    return JSONResponse(body, status_code=refusal.status, headers=refusal.headers)


def _retry_of(request: Request) -> int:
    said = request.headers.get("x-stainless-retry-count", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 6 else 0
