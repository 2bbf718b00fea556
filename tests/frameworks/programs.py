"""Agents of public frameworks with a tool that adds; nothing but the URL is ours.

``WAYS`` has each framework with each of its interfaces, whole and streamed. ``agent(way, seen)`` is the program; it
notes in ``seen`` what the framework itself says of an episode.
"""

from dataclasses import dataclass, field

QUESTION = "What is 2 + 3 + 4?"
SYSTEM = "Add numbers with the tool."


@dataclass
class Seen:
    """What a framework says of an episode."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    """Arguments that the tool was called with."""
    output: object = None
    """The last word."""
    requests: int = 0
    """Requests, as it counted them."""
    tokens: int = 0
    """Sampled tokens, as it was told."""


def agent(way, seen):
    """A function, coroutine function or not, for ``AgentEnv``; it earns 1 if the last word has a 9."""
    framework, interface, stream = way
    return MAKERS[framework](interface, stream, seen)


def adder(note):
    """The tool, noting how it is called."""

    def add(first: int, second: int) -> int:
        """Add two numbers.

        Args:
            first: One.
            second: Another.
        """
        note.calls.append((first, second))
        return first + second

    return add


def score(note, seen):
    seen.append(note)
    return float("9" in str(note.output))


def openai_agents(interface, stream, seen):
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    kinds = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}

    async def solve(task, endpoint):
        note = Seen()
        async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            adding = agents.Agent(
                name="Adder",
                instructions=SYSTEM,
                tools=[agents.function_tool(adder(note))],
                model=kinds[interface](model=endpoint.model, openai_client=client),
                model_settings=agents.ModelSettings(include_usage=True),
            )
            try:
                if stream:
                    run = agents.Runner.run_streamed(adding, QUESTION)
                    async for _ in run.stream_events():
                        pass
                else:
                    run = await agents.Runner.run(adding, QUESTION)
            except agents.exceptions.ModelBehaviorError:
                return 0.0  # a response of the newer interface that was cut
        used = run.context_wrapper.usage
        note.output, note.requests, note.tokens = (
            run.final_output,
            used.requests,
            used.output_tokens,
        )
        return score(note, seen)

    return solve


def pydantic_ai(interface, stream, seen):
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    def model(place):
        if interface == "anthropic":
            provider = AnthropicProvider(base_url=place.anthropic_url, api_key=place.api_key)
            return AnthropicModel(place.model, provider=provider)
        kinds = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
        provider = OpenAIProvider(base_url=place.base_url, api_key=place.api_key)
        return kinds[interface](place.model, provider=provider)

    async def listen(context, events):
        async for _ in events:
            pass

    async def solve(task, endpoint):
        note = Seen()
        adding = Agent(model(endpoint), instructions=SYSTEM, tools=[adder(note)])
        run = await adding.run(QUESTION, event_stream_handler=listen if stream else None)
        note.output, used = run.output, run.usage
        note.requests, note.tokens = used.requests, used.output_tokens
        return score(note, seen)

    return solve


def smolagents(interface, stream, seen):
    import smolagents as smol

    kinds = {"code": smol.CodeAgent, "tools": smol.ToolCallingAgent}

    def solve(task, endpoint):
        note = Seen()
        model = smol.OpenAIModel(
            endpoint.model, api_base=endpoint.base_url, api_key=endpoint.api_key
        )
        adding = kinds[interface](
            tools=[smol.tool(adder(note))],
            model=model,
            stream_outputs=stream,
            verbosity_level=smol.LogLevel.OFF,
        )
        note.output = adding.run(QUESTION)
        steps = [one for one in adding.memory.steps if isinstance(one, smol.ActionStep)]
        note.requests = len(steps)
        note.tokens = sum(one.token_usage.output_tokens for one in steps)
        return score(note, seen)

    return solve


def langchain(interface, stream, seen):
    from langchain.agents import create_agent
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import AIMessage
    from langchain_openai import ChatOpenAI

    def model(place):
        given = {"model": place.model, "api_key": place.api_key, "streaming": stream}
        if interface == "anthropic":
            return ChatAnthropic(**given, base_url=place.anthropic_url)
        given |= {"base_url": place.base_url, "stream_usage": stream}
        return ChatOpenAI(**given, use_responses_api=interface == "responses")

    def solve(task, endpoint):
        note = Seen()
        adding = create_agent(model(endpoint), tools=[adder(note)], system_prompt=SYSTEM)
        history = adding.invoke({"messages": [{"role": "user", "content": QUESTION}]})["messages"]
        said = [one for one in history if isinstance(one, AIMessage)]
        note.output, note.requests = said[-1].text, len(said)
        note.tokens = sum(one.usage_metadata["output_tokens"] for one in said)
        return score(note, seen)

    return solve


MAKERS = {
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "smolagents": smolagents,
    "langchain": langchain,
}
INTERFACES = {
    "openai-agents": ("chat", "responses"),
    "pydantic-ai": ("chat", "responses", "anthropic"),
    "smolagents": ("code", "tools"),
    "langchain": ("chat", "responses", "anthropic"),
}
WAYS = [
    (framework, interface, stream)
    for framework, several in INTERFACES.items()
    for interface in several
    for stream in (False, True)
]


def name_of(way):
    framework, interface, stream = way
    return f"{framework}-{interface}-{'streamed' if stream else 'whole'}"
