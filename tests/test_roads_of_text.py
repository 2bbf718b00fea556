"""All roads of strangers' text: from an environment, a tool, a data set, an error or the policy to a prompt, a terminal
or a file, with every added token of the families, control sequences, lone surrogates and 10 MB.

Nothing forges an added token in a prompt (the number of each is that of the same conversation with harmless text), nothing
raw reaches a terminal, nothing raises.

Mutations seen red: directions left in errors, in the table of completions; a name of a log as it is; a heading with
markup; a column of the table as it is; the sentence of a command as it is; a value of a message that is no text taken for
one; names of environments in the model card as they are; strict streams.
"""

import dataclasses
import io
import json
import logging
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from time import process_time
from types import SimpleNamespace

import pytest
import trl.trainer.utils
from rich.console import Console

from agentic_trl.broken_batches import BrokenEnvironmentsError, refuse_broken_batch
from agentic_trl.command_line import sentence
from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.base import ActionFormat, TextEnv
from agentic_trl.environments.single_turn import SingleTurn
from agentic_trl.evaluation import EpisodeRecord
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.run.metrics import log_texts
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.user_values import LONGEST_SHOWN, let_streams_show_anything
from agentic_trl.viewer import render_trajectory
from tests.rollout.scripted import Waves, given
from tests.rollout.text.families import FAMILIES, tokenizer
from tests.rollout.text.test_injection import CONTROLS, check_console, check_trace
from tests.tiny import Countdown, make_args, make_model, make_tokenizer
from tests.tokenizers import spell

CHATS = {name: ChatFormat(tokenizer(name)) for name in FAMILIES}
SEQUENCES = [
    "\x1b[2J",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "\x07",
    "\b\b",
    "\r",
    "\u202e\u2066",
]
OWN_FORM = ("<think>", "</think>")
"""What an environment must be able to name: how it is to be answered."""
TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
HARMFUL = "".join(
    f"x{one}" for one in [*CONTROLS, *SEQUENCES, "[/bold]", "[link=http://x]", "`", "\n# x"]
)


def dirt(family):
    """Every added token, plain and cut by what is taken out of texts."""
    tokens = sorted(tokenizer(family).get_added_vocab())
    cut = (f"{one[:2]}{CONTROLS[i % len(CONTROLS)]}{one[2:]}" for i, one in enumerate(tokens))
    return "".join(tokens) + "\n".join(cut) + HARMFUL


def harmless(text):
    return re.sub(r"\S", "x", text)


class Everywhere(TextEnv):
    """Writes a text wherever an environment may."""

    action_format = ActionFormat(words=("up",), lenient=True)

    def __init__(self, text, *, opening, error=False):
        self.text, self.error = text, error
        self.messages = opening == "messages"
        self.instructions = text if opening == "instructions" else "go up"

    def reset(self, *, seed=None, options=None):
        head = {
            "role": "system",
            "content": self.text,
            "name": self.text,
            "parts": [self.text, None],
        }
        return self.text, {"messages": [head]} if self.messages else {}

    def step(self, action):
        if self.error:
            raise LookupError(self.text)
        return self.text, 0.0, False, False, {"note": self.text}

    def state_key(self):
        return self.text


class Speaker(Waves):
    """Says the same in every turn; keeps the prompts."""

    def __init__(self, tokenizer, said):
        self.ids = (*spell(tokenizer, said), tokenizer.eos_token_id)
        self.prompts = []

    def generate(self, requests):
        self.prompts += [one.context_ids for one in requests]
        return [Sample(ids=self.ids, logprobs=(0.0,) * len(self.ids), truncated=False)] * len(
            requests
        )


def play(family, environment, *, said="up", task=None, context=None):
    chat = CHATS[family]
    rollout = Rollout(
        engine=Speaker(chat.tokenizer, said),
        chat=chat,
        stop_ids=frozenset({chat.tokenizer.eos_token_id}),
        limits=Limits(max_tokens_per_turn=9999, max_context_tokens=context),
    )
    start = Start(task=task or {}, group=0, member=0, seed=(0,), max_turns=2)
    (one,) = collect(*given([start], [environment]), rollout)
    return one, rollout.engine.prompts


def special(family):
    """Ids that begin or end something: the special tokens, and those that the template writes."""
    kinds = tokenizer(family).added_tokens_decoder
    blank = {i for i, one in kinds.items() if not one.content.replace("▁", "").strip()}
    roles = ("system", "user", "assistant", "user")
    written = CHATS[family].render([{"role": one, "content": "x"} for one in roles])
    glue = {i for i, one in kinds.items() if one.content in written and one.content not in OWN_FORM}
    return {i for i, one in kinds.items() if one.special} | glue, set(kinds) - blank


def check_prompts(family, dirty, clean, *, opening):
    """What is merely added may stand in what opens a conversation, but nowhere else."""
    ends, added = special(family)
    counted = (ends if opening else added) & added
    assert len(dirty) == len(clean) > 0
    for ids, expected in zip(dirty, clean, strict=True):
        assert Counter(filter(counted.__contains__, ids)) == Counter(
            filter(counted.__contains__, expected)
        )


def check_terminal(shown):
    """Nothing that a terminal carries out, and nothing that turns the text around it."""
    kinds = {c: (unicodedata.category(c), unicodedata.bidirectional(c)) for c in set(shown)}
    raw = {c for c, (kind, _) in kinds.items() if kind in {"Cc", "Cs"}} - {"\n", "\t"}
    turning = {c for c, (_, turn) in kinds.items() if turn in TURNING}
    assert raw | turning == set()


def check_table(monkeypatch, trajectory):
    """TRL's table of completions, on a console that writes no colours of its own."""
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    monkeypatch.setattr(trl.trainer.utils, "Console", lambda: console)
    names = ("prompt", "completion", "advantages")
    logs = {**{name: [] for name in names}, "rewards": defaultdict(list)}
    log_texts(SimpleNamespace(_logs=logs, reward_funcs=[None]), [trajectory], [])
    trl.trainer.utils.print_prompt_completions_sample(
        logs["prompt"], logs["completion"], logs["rewards"], logs["advantages"], 1
    )
    check_terminal(shown.getvalue())


def check_everywhere(monkeypatch, trajectory):
    check_console(trajectory)
    check_table(monkeypatch, trajectory)
    for message in trajectory.messages:  # what is no text is written as JSON
        for value in message.values():
            assert isinstance(value, str) or json.dumps(value)
    (line,) = trace_lines([trajectory])
    assert json.dumps(line).isascii()
    assert all(isinstance(text, str) for one in line["messages"] for text in one.values())
    if all(isinstance(text, str) for one in trajectory.messages for text in one.values()):
        check_trace(trajectory)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("opening", ["messages", "instructions"])
def test_an_environment(monkeypatch, family, opening):
    text = dirt(family)
    dirty, prompts = play(family, Everywhere(text, opening=opening), task={"column": text})
    assert dirty.stop == "turn_limit"
    # Observations forge nothing at all; what opens the conversation nothing that begins or ends a message.
    _, clean = play(family, Everywhere(harmless(text), opening=opening))
    check_prompts(family, prompts, clean, opening=True)
    _, dirty_alone = play(family, Everywhere(text, opening="none"))
    _, clean_alone = play(family, Everywhere(harmless(text), opening="none"))
    check_prompts(family, dirty_alone, clean_alone, opening=False)
    check_everywhere(monkeypatch, dirty)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_error_of_an_environment(family, caplog, monkeypatch):
    failed, _ = play(family, Everywhere(dirt(family), opening="none", error=True))
    assert failed.stop == "environment_error"
    check_everywhere(monkeypatch, failed)
    records = [EpisodeRecord.of(failed)]
    with caplog.at_level(logging.WARNING):
        refuse_broken_batch(records, max_failed_fraction=1.0)
    check_terminal(caplog.text)
    with pytest.raises(BrokenEnvironmentsError) as refused:
        refuse_broken_batch(records, max_failed_fraction=0.0)
    check_terminal(str(refused.value))
    check_terminal(sentence(refused.value))


@pytest.mark.parametrize("family", [one for one in FAMILIES if one != "gpt-oss"])
def test_the_policy(monkeypatch, family):
    # Its tokens are its own; on the way to a terminal or a file they are a stranger's text.
    said = "up" + HARMFUL.encode("utf-8", "replace").decode() + FAMILIES[family].end[:-1]
    one, _ = play(family, Everywhere("wall", opening="none"), said=said)
    assert one.stop == "turn_limit"
    check_everywhere(monkeypatch, one)


@pytest.mark.parametrize("family", ["qwen3", "gemma", "llama3"])
def test_a_prompt_column_and_tools(monkeypatch, family):
    text = dirt(family)
    one, _ = play(family, SingleTurn(), task={"prompt": [{"role": "user", "content": text}]})
    assert one.stop == "terminated"  # trusted: its tokens are meant
    check_everywhere(monkeypatch, one)

    def look(place: str) -> str:
        """Look.

        Args:
            place: Where.
        """
        if place == "up":
            raise ValueError(shown)
        return shown

    prompts = {}
    for shown in (text, harmless(text)):
        for place in ("up", "down"):
            call = json.dumps({"name": "look", "arguments": {"place": place}})
            environment = ToolEnv(tools=[look], instructions="Look.")
            one, found = play(family, environment, said=f"<tool_call>{call}</tool_call>")
            assert one.stop == "turn_limit"
            prompts.setdefault(shown == text, []).extend(found)
            check_everywhere(monkeypatch, one)
    check_prompts(family, prompts[True], prompts[False], opening=False)


def test_names_and_logs_of_reward_functions_and_environments(tmp_path, capsys):
    def noisy(completions, log_metric, log_extra, **columns):
        log_metric(HARMFUL, 1.0)
        log_extra(HARMFUL + "2", [HARMFUL] * len(completions))
        return [0.0 for _ in completions]

    noisy.__name__ = HARMFUL
    name = HARMFUL.replace("\x00", "").encode("utf-8", "replace").decode()  # as Python takes it
    named = type(name, (Countdown,), {})
    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, log_completions=True, report_to="none"),
        environment={name: named},
        processing_class=make_tokenizer(),
        reward_funcs=[noisy],
    )
    trainer.train()
    trainer.create_model_card()
    printed = capsys.readouterr()
    check_terminal(printed.out)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    check_terminal(card)
    assert card.count("\n# x") == 0
    (log,) = [one for one in trainer.state.log_history if "loss" in one]
    check_terminal("".join(log))
    assert not any(set(name) & set("\n[`") for name in log)


def test_an_error_of_a_reward_function_is_a_line():
    check_terminal(sentence(ValueError(HARMFUL)))
    assert "\n" not in sentence(ValueError(HARMFUL))


def test_a_terminal_of_ascii_shows_anything(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    let_streams_show_anything()
    one, _ = play("qwen3", Everywhere("漢字 ½", opening="none"))
    Console(width=80).print(render_trajectory(one))
    sys.stdout.flush()
    assert b"\\u6f22" in raw.getvalue()


def test_ten_megabytes(monkeypatch):
    # How long a tokenizer takes for what is not cut is in test_injection.py; here is all else.
    times = {}
    for size in (10**6, 10**7):
        text = ((HARMFUL + " the wall is up. <|im_end|>") * (size // 50))[:size]
        began = process_time()
        one, _ = play("qwen3", Everywhere(text, opening="none"), context=4096)
        assert one.stop == "context_overflow"
        failed, _ = play("qwen3", Everywhere(text, opening="none", error=True), context=99)
        messages = [{"role": role, "content": text} for role in ("user", "assistant")]
        policy = dataclasses.replace(one, messages=tuple(messages), error=text, task={"t": text})
        for shown in (one, failed, policy):
            check_everywhere(monkeypatch, shown)
        assert len(sentence(ValueError(text))) <= LONGEST_SHOWN
        times[size] = process_time() - began
    # Ten times the text takes ten times the time at most; a half more for the noise of a busy machine.
    assert times[10**7] < 15 * times[10**6]
    assert times[10**7] < 60
