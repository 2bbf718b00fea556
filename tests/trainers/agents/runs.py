"""Programs that call the policy, runs that train on them, and what engine and loss saw of such a run."""

import copy
import functools
import json
import random
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import torch

from agentic_trl import AgentEnv, AgenticGRPOTrainer, AgenticPPOTrainer
from agentic_trl.trainers.model.forward import token_logprobs
from tests.paths import ROOT
from tests.rollout import test_tool_turns as calls
from tests.tiny import make_model, make_trainer
from tests.trainers.agents.dropping import Dropping
from tests.trainers.update.ppo_tools import make_ppo


def post(endpoint, messages, **more):
    """A chat completion, with log-probabilities."""
    body = json.dumps({"messages": messages, "logprobs": True, **more}).encode()
    headers = {"authorization": f"Bearer {endpoint.api_key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]


def sdk(endpoint, messages, *, base_url=None, **more):
    """The same by OpenAI's client, a connection for each request."""
    with openai.OpenAI(
        base_url=base_url or endpoint.base_url,
        api_key=endpoint.api_key,
        max_retries=5,
        default_headers={"connection": "close"},
    ) as client:
        answer = client.chat.completions.create(
            model=endpoint.model, messages=messages, logprobs=True, **more
        )
    return answer.choices[0].model_dump(exclude_none=True)


def user(text):
    return {"role": "user", "content": text}


def said(choice):
    return {"role": "assistant", "content": choice["message"]["content"]}


def words(seed, count):
    return " ".join(f"w{(7 * seed + 3 * i) % 20}" for i in range(count))


def loop(task, endpoint, post=post):
    """A plain loop of three turns."""
    history, told = [user(words(task["seed"], 3))], 0
    for turn in range(3):
        choice = post(endpoint, history)
        told += len(choice["message"]["content"].split())
        history += [said(choice), user(words(task["seed"] + turn, 2))]
    return float(told % 2)


def tools(task, endpoint, post=sdk):
    """Carries out what the policy calls, by OpenAI's client, until it calls nothing, at most four times."""
    history, total = [user(random.Random(task["seed"]).choice("ab"))], 0
    for _ in range(4):
        message = post(endpoint, history, tools=[ADD])["message"]
        history.append(message)
        if not message.get("tool_calls"):
            break
        for one in message["tool_calls"]:
            given = json.loads(one["function"]["arguments"])
            total = given["first"] + given["second"]
            result = {"role": "tool", "tool_call_id": one["id"], "content": str(total)}
            history.append(result)
    return {"score": float(total == 7), "calls": float(total > 0)} if total else 0.0


def parallel(task, endpoint, post=post):
    """A main conversation, and two sub-agents that call at the same time."""

    def helper(number):
        history = [user(f"a {words(number, 2)}")]
        for _ in range(2):
            choice = post(endpoint, history)
            history += [said(choice), user("b")]
        return history[-2]["content"]

    first = post(endpoint, [user(words(task["seed"], 3))])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(helper, range(2)))
    last = post(endpoint, [user(words(task["seed"], 3)), said(first), user("c")])
    return {"score": float(len("".join(found)) % 2), "success": len(last["message"]["content"]) > 5}


def summary(task, endpoint, post=post):
    """Forgets what was said, and goes on from a summary."""
    history = [user(words(task["seed"], 4))]
    for turn in range(4):
        if turn == 2:
            history = [user("d " + history[-1]["content"])]
        history += [said(post(endpoint, history)), user("c")]
    return 1.0 if "w1" in history[-2]["content"] else 0.0


DROPS = ["before", "sent", "", "midst", "unread", "", "before", "midst", "sent", "unread", ""]
"""Fates of the connections of ``retries``: three requests, sent 3, 3 and 5 times."""


def retries(task, endpoint, post=sdk):
    """The plain loop, by OpenAI's client and a proxy that drops connections."""
    with Dropping(endpoint, DROPS) as proxy:
        score = loop(task, endpoint, functools.partial(post, base_url=proxy.base_url))
        assert proxy.seen == DROPS
    return score


def twice(task, endpoint, post=post):
    """Asks the same twice, and goes on from the first response or from the second."""
    ask = [user(words(task["seed"], 3))]
    both = [post(endpoint, ask), post(endpoint, ask)]
    history = [*ask, said(both[task["seed"] % 2]), user("c")]
    return float(len(post(endpoint, history)["message"]["content"]) % 2)


PROGRAMS = {
    "loop": (loop, 1),
    "tools": (tools, 1),
    "parallel": (parallel, 3),
    "summary": (summary, 2),
    "retries": (retries, 1),
    "twice": (twice, 1),
}
"""Programs, and how many rows of the loss each of their episodes has."""

COMMAND = ["python", "-I", "-S", str(ROOT / "tests" / "trainers" / "agents" / "solve.py")]
"""The loop as a program."""

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"first": {"type": "integer"}, "second": {"type": "integer"}},
        },
    },
}


@functools.cache
def _calling_model():
    """A tiny model that has learnt to call a function, or to answer, or to write a call that is none."""
    draw = random.Random(0)
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        rows = [calls.ids(_talk(draw)) for _ in range(16)]
        longest = max(map(len, rows))
        padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        labels = padded.masked_fill(padded == 0, -100)
        model(input_ids=padded, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def _talk(draw):
    sums = {'{"first":1,"second":2}': "3", '{"first":3,"second":4}': "7"}
    parts = [f"<system> add <end> <user> {draw.choice('ab')} <end>"]
    for _ in range(2):
        call = draw.choice(list(sums))
        thought = draw.choice(["", "<think> b </think> "])
        parts.append(
            f"<assistant> {thought}<call> add {call} </call> <end> <tool> {sums[call]} <end>"
        )
    parts[draw.choice([1, 2, 3, 3, 3]) :] = [
        f"<assistant> {draw.choice(['c', 'd c', '<call> add {oops </call>'])} <end>"
    ]
    return " ".join(parts)


def policy_of(name):
    """Model and tokenizer for a program."""
    if name != "tools":
        return {}
    return {
        "model": copy.deepcopy(_calling_model()),
        "tokenizer": calls.chat().tokenizer,
        "max_completion_length": 9,  # a thought, a call and the end
    }


class Keeps:
    """Keeps the episodes of each batch, what the engine sampled, and the sampled tokens of the loss with their scores."""

    def play(self, starts, **more):
        self.kept = super().play(starts, **more)
        return self.kept

    def policy_loss(self, model, micro):
        with torch.no_grad():
            scores, _ = token_logprobs(
                model, micro.batch, temperature=self.temperature, head=self.head
            )
        self.in_loss += spans_of(micro.batch, scores)
        self.rows_in_loss += len(micro.batch.input_ids)
        return super().policy_loss(model, micro)


class KeepsGRPO(Keeps, AgenticGRPOTrainer):
    """GRPO."""


class KeepsPPO(Keeps, AgenticPPOTrainer):
    """PPO."""

    trajectories = None


def spans_of(batch, scores):
    """The sampled parts of rows: the ids before one, its ids, their log-probabilities in the loss."""
    found = []
    for row in range(len(batch.input_ids)):
        real = batch.attention_mask[row].bool()
        ids, turns, logprobs = (
            one[row][real].tolist() for one in (batch.input_ids, batch.turn_of_token, scores)
        )
        for turn in sorted(set(turns) - {-1}):
            at = [place for place, owner in enumerate(turns) if owner == turn]
            first, end = at[0], at[-1] + 1
            assert at == list(range(first, end))
            found.append((tuple(ids[:first]), tuple(ids[first:end]), tuple(logprobs[first:end])))
    return found


def record_engine(trainer):
    """Note in ``trainer.sampled`` what the engine is asked and samples, under the log-probabilities that it gives."""
    make = trainer.rollouts.engine
    trainer.sampled = []

    def recorded(model, sampling):
        engine, asked = make(model, sampling), {}
        submit, advance = engine.submit, engine.advance

        def note_asked(requests):
            for one in requests:
                assert one.episode not in asked
                asked[one.episode] = one.context_ids
            submit(requests)

        def note_sampled():
            done = advance()
            for episode, sample in done:
                trainer.sampled.append((asked.pop(episode), sample.ids, sample.logprobs))
            return done

        engine.submit, engine.advance = note_asked, note_sampled
        return engine

    trainer.rollouts.engine = recorded


KNOBS = {
    "rollout_order": "rounds",
    "max_turns": 8,
    "max_completion_length": 6,
    "per_device_train_batch_size": 8,
    "num_train_tasks": 4,
    "num_eval_tasks": 2,
}


def make_run(folder, program=None, *, ppo=False, cls=None, command=None, agent=None, **changes):
    """A trainer on a program, a function or a command, that keeps what happens."""
    environment = AgentEnv(program, command=command, **(agent or {}))
    if ppo:
        knobs = {**KNOBS, **changes}
        trainer = make_ppo(folder, cls=cls or KeepsPPO, environment=environment, **knobs)
    else:
        knobs = {"method": "planpo", **KNOBS, **changes}
        trainer = make_trainer(folder, cls=cls or KeepsGRPO, environment=environment, **knobs)
    trainer.in_loss, trainer.rows_in_loss = [], 0
    record_engine(trainer)
    return trainer


def train(folder, program=None, **changes):
    trainer = make_run(folder, program, **changes)
    trainer.train()
    return trainer


class Told:
    """What programs were sent: text and log-probability of each token, an entry a request."""

    def __init__(self):
        self.answers, self._lock = [], threading.Lock()

    def noting(self, program, post):
        """The program, each of whose answers is noted."""

        def note(endpoint, messages, **more):
            choice = post(endpoint, messages, **more)
            tokens = (choice.get("logprobs") or {}).get("content") or []
            with self._lock:
                self.answers.append([(one["token"].strip(), one["logprob"]) for one in tokens])
            return choice

        return lambda task, endpoint: program(task, endpoint, note)
