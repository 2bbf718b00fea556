"""Random conversations with tools: schemas, an environment that answers calls, and responses as templates write them.

``TOOL_TEMPLATES`` are the templates of TRL that are shown tools in their own format. A response is the template's own
writing of a message, or a restyled one (other spaces and another order of its JSON), or a broken one.
"""

import json
import random
import re
from dataclasses import dataclass, field

from agentic_trl.environments.base import TextEnv
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import full_history
from tests.rollout.scripted import given
from tests.rollout.text.test_templates import Player, and_training
from tests.tokenizers import TURN_ENDS, respell

TOOL_TEMPLATES = {"gemma4", *(f"gemma4_v{n}" for n in (2, 3, 4, 5)), "lfm2_2_5", "lfm2_2_5_v2"}
TOOL_TEMPLATES |= {"lfm2_2_5_vl", "llama3_1", "llama3_2", "qwen3_5_nothink", "qwen3_5_think"}
TOOL_TEMPLATES |= {"qwen3_5_nothink_training", "qwen3_5_think_training"}
TOOL_TEMPLATES |= and_training(
    "diffusion_gemma", "glm4moe", "gptoss", "lfm2_v2", "qwen2_5", "qwen3"
)
TOOL_TEMPLATES |= and_training("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra")
TOOL_TEMPLATES |= and_training("nemotron_3_5_lightning", "qwen3_6", "qwen3_8", "qwen3_vl")
TOOL_TEMPLATES |= and_training("qwen3_instruct_2507")

ONE_CALL = {"llama3_1", "llama3_2", "gptoss", "gptoss_training"}
"""Templates that write one call a message at most."""
PYTHON = {"lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2", "lfm2_v2_training"}
"""Templates that write values as Python does: what is no text or whole number cannot be read back."""
XML = {one for one in TOOL_TEMPLATES if re.match("glm4moe|nemotron|qwen3_5|qwen3_6|qwen3_8", one)}
"""Templates that write texts as they are: space around them is lost."""
NO_THOUGHT = {"llama3_1", "llama3_2"}
"""Templates whose parser knows no reasoning."""

SCHEMA = {
    "type": "function",
    "function": {
        "name": "get_0",
        "description": "Get.",
        "parameters": {"type": "object", "properties": {}},
    },
}

WORDS = ["wall", "go left", "a: b", "x=1", "漢字", "é", "0x1F", "half ½", "user", "-"]


def call_end(template):
    """The token that ends a response with calls."""
    special = {"gptoss": "<|call|>", "glm4moe": "<|observation|>", "gemma4": "<|tool_response>"}
    special |= {"diffusion_gemma": "<|tool_response>", "gemma4_v2": "<turn|>"}
    names = sorted((name for name in special if template.startswith(name)), reverse=True)
    return special[names[0]] if names else TURN_ENDS[template]


def a_schema(rng, index):
    types = ["string", "integer", "boolean", "object", "array"]
    properties = {
        f"key_{n}": {"type": rng.choice(types), "description": rng.choice(WORDS)}
        for n in range(rng.randint(0, 3))
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    name = f"{rng.choice(['find', 'get', 'Move'])}_{index}"
    function = {"name": name, "description": rng.choice(WORDS), "parameters": parameters}
    return {"type": "function", "function": function}


def a_value(rng, kind, template):
    if kind == "string" or (template in PYTHON and kind != "integer"):
        return rng.choice(WORDS)
    if kind == "integer":
        return rng.randint(-5, 99)
    if kind == "boolean":
        return rng.random() < 0.5
    deep = (
        rng.choice(WORDS) if template.startswith("gemma4") else None
    )  # which writes None, no JSON
    inside = [rng.randint(0, 9), rng.choice(WORDS), [1, {"deep": deep}], rng.random() < 0.5]
    return {"k": rng.choice(inside), "e": {}} if kind == "object" else rng.sample(inside, 2)


def a_call(rng, schemas, template, *, unknown=0.1):
    function = rng.choice(schemas)["function"]
    properties = function["parameters"]["properties"]
    arguments = {k: a_value(rng, one["type"], template) for k, one in properties.items()}
    name = "no_such_tool" if rng.random() < unknown else function["name"]
    if name != function["name"]:  # nothing tells the types
        arguments = {"text": rng.choice(WORDS)} if template in XML else arguments
        arguments = {k: v for k, v in arguments.items() if template not in XML or v != "-"}
    return {"name": name, "arguments": arguments}


def message(content="", calls=(), reasoning=""):
    parts = {"role": "assistant", "content": content}
    if reasoning:
        parts |= {"reasoning_content": reasoning, "thinking": reasoning}
    if calls:
        made = [{"id": f"c{i:08d}", "type": "function", "function": c} for i, c in enumerate(calls)]
        parts["tool_calls"] = made
    return parts


def own_writing(chat, schemas, said):
    """The response, without its end, that the template itself writes for a message, and the prompt before it."""
    ask, more = [{"role": "user", "content": "x"}], {"tools": schemas, "tokenize": False}
    apply = chat.tokenizer.apply_chat_template
    prompt = apply(ask, add_generation_prompt=True, **more)
    written = apply([*ask, said], add_generation_prompt=False, **more)
    same = next(
        (i for i, (a, b) in enumerate(zip(prompt, written, strict=False)) if a != b), len(prompt)
    )
    return written[same:]


def hermes_writing(said):
    """The same where the template knows no tools."""
    parts = [f"<think>\n{said['reasoning_content']}\n</think>"] if "thinking" in said else []
    parts += [said["content"]] if said["content"] else []
    for one in said.get("tool_calls", ()):
        parts.append(f"<tool_call>\n{json.dumps(one['function'])}\n</tool_call>")
    return "\n".join(parts)


def restyled(rng, text):
    """The same calls with other spaces and orders in their JSON."""

    def other(match):
        call = json.loads(match[1])
        keys = list(call)
        rng.shuffle(keys)
        between = rng.choice([(",", ":"), (", ", ": "), (" , ", " : ")])
        body = json.dumps(
            {k: call[k] for k in keys}, separators=between, ensure_ascii=rng.random() < 0.5
        )
        space = rng.choice(["", "\n", " "])
        return f"<tool_call>{space}{body}{space}</tool_call>"

    return re.sub(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", other, text, flags=re.DOTALL)


def broken(rng, text, mark):
    """A response with calls, spoiled: cut behind its mark, or with what is no JSON."""
    at = text.index(mark) + len(mark)
    ways = [text[: rng.randint(at, max(at, len(text) - 15))], text[:at] + "{oops" + text[at + 4 :]]
    return rng.choice(ways)


@dataclass
class Saying:
    """A response."""

    ids: tuple
    cut: bool
    calls: list | None
    """Its calls; ``None`` if it is broken, or nobody knows."""


class Tooled(TextEnv):
    """Answers each call with the next result and each text with the next remark; keeps what it hears."""

    def __init__(self, schemas, texts, instructions=""):
        self.tools, self.texts, self.instructions = schemas, iter(texts), instructions
        self.heard = []

    def reset(self, *, seed=None, options=None):
        return next(self.texts), {}

    def step(self, action):
        self.heard.append(action)
        calls = action["tool_calls"]
        said = [
            {
                "role": "tool",
                "tool_call_id": one["id"],
                "name": one["function"]["name"],
                "content": next(self.texts),
            }
            for one in calls
        ]
        return "" if calls else next(self.texts), 1.0, False, False, {"messages": said}


@dataclass
class Played:
    """What came of conversations with one template."""

    trajectories: list = field(default_factory=list)
    shown: list = field(default_factory=list)
    environments: list = field(default_factory=list)
    sayings: list = field(default_factory=list)
    schemas: list = field(default_factory=list)
    history: object = full_history


def a_saying(rng, chat, template, schemas):
    """A random response as ids."""
    most = 1 if template in ONE_CALL else 2
    calls = [a_call(rng, schemas, template) for _ in range(rng.choice([0, 1, 1, 1, most]))]
    thinks = template not in NO_THOUGHT and rng.random() < 0.5
    thought = rng.choice(["so", "the wall\n\nand up"]) if thinks else ""
    harmony = template.startswith("gptoss")
    content = rng.choice(WORDS[:6]) if not calls or (rng.random() < 0.3 and not harmony) else ""
    said = message(content, calls, thought)
    if template in TOOL_TEMPLATES:
        end = call_end(template) if calls else TURN_ENDS[template]
        text = own_writing(chat, schemas, said).rstrip().removesuffix(end)
    else:
        end, text = TURN_ENDS[template], hermes_writing(said)
    text = restyled(rng, text)
    known = calls
    if calls and rng.random() < 0.2:
        text, known = broken(rng, text, chat.tool_format.mark), None
    ids = respell(rng, chat.tokenizer, text)
    cut = bool(ids) and rng.random() < 0.1
    if cut and rng.random() < 0.7:
        ids, known = ids[: rng.randint(1, len(ids))], None
    elif cut:
        known = None
    ends = () if cut else (chat.tokenizer.convert_tokens_to_ids(end),)
    return Saying(ids=(*ids, *ends), cut=cut, calls=known)


def play_tools(chat, template, count, *, seed, texts, history=full_history, turns=5):
    """Play conversations; ``texts`` gives an observation or a result."""
    rng = random.Random(seed)
    played = Played(history=history)
    answers, starts = [], []
    for index in range(count):
        schemas = [a_schema(rng, n) for n in range(rng.randint(1, 3))]
        sayings = [a_saying(rng, chat, template, schemas) for _ in range(turns)]
        said = [texts(rng) for _ in range(3 * turns + 1)]
        played.environments.append(Tooled(schemas, said, rng.choice(["", "Go up."])))
        played.sayings.append(sayings)
        played.schemas.append(schemas)
        answers.append([(one.ids, one.cut) for one in sayings])
        starts.append(Start(task={}, group=index, member=0, seed=(index,), max_turns=turns))
    engine = Player(answers)
    ends = [call_end(template), TURN_ENDS[template]]
    stop = frozenset(chat.tokenizer.convert_tokens_to_ids(ends))
    limits = Limits(max_tokens_per_turn=1)  # the engine's answers are prepared, whatever the limit
    rollout = Rollout(engine=engine, chat=chat, stop_ids=stop, limits=limits, history=history)
    played.trajectories = collect(*given(starts, played.environments), rollout)
    played.shown = engine.shown
    return played
