"""SearchQA: episodes, grading, tasks, and what of an episode is the policy's.

Changes of the code that turned these tests red, each tried once:

- Articles, punctuation or case kept in ``normalize_answer``; articles before punctuation:
  ``test_normalize_answer``.
- ``any`` accepted answer replaced by the first: ``test_exact_match``, ``test_f1_by_hand``.
- F1 of sets of words: ``test_f1_by_hand``.
- ``reward`` ignored: ``test_f1_reward_leaves_success_to_the_exact_match``.
- An answer that ends nothing, a search that ends: ``test_episode_in_full``.
- An empty search carried out: ``test_invalid_action_changes_nothing``.
- ``_running`` left true: ``test_step_needs_a_running_episode``.
- A failed search kept in ``queries``, or shown as no passage: ``test_a_failed_search_fails_the_episode``.
- The question drawn without the seed: ``test_same_seed_same_episode``.
- Tasks from the demo though there is a file: ``test_tasks_come_from_the_file``.
- Passages of training alone indexed: ``test_own_passages_of_both_files_are_found``.
- ``eval_data`` not read: ``test_tasks_come_from_the_file``.
- Both splits of one list: ``test_splits_are_disjoint``.
- ``max_turns=6``: ``test_rollout_cuts_after_the_fifth_search``.
"""

import json
import warnings

import pytest
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker
from transformers import AutoTokenizer

from agentic_trl.assets import tiny_policy
from agentic_trl.environments.qa.base import QuestionOracle
from agentic_trl.environments.qa.corpus import Passage
from agentic_trl.environments.qa.retrieval import BM25Retriever, RetrieverError
from agentic_trl.environments.qa.search_qa import SearchQA, exact_match, f1_score, normalize_answer
from agentic_trl.environments.registry import env_spec, make_env, resolve_environment
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.trainers.user_code.tasks import refuse_unknown_columns, task_dataset
from agentic_trl.types import StopReason, TokenKind
from tests.rollout.scripted import Waves

TASK = {"question": "Who founded Velora?", "answers": ["Ada Harrow", "A. Harrow"]}
MADE_UP = [
    Passage("Velora", "A town on the Sihtalev River, founded by Ada Harrow."),
    Passage("Zanemis", "A town known for bells."),
]


class Broken:
    def search(self, query, topk):
        raise RetrieverError(f"no answer to {query} for {topk}")


def small(**arguments):
    return SearchQA(retriever=BM25Retriever(MADE_UP), **arguments)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("An apple, a day", "apple day"),
        ("a.n. other", "other"),  # punctuation goes before articles: SQuAD's order
        ("Theatre\tan\nAthens", "theatre athens"),
        ("THE", ""),
        ("«É»", "«é»"),
    ],
)
def test_normalize_answer(text, plain):
    assert normalize_answer(text) == plain


def test_exact_match():
    assert exact_match("the ada harrow.", ["A. Harrow", "Ada Harrow"])
    assert exact_match("harrow", ["A Harrow"])
    assert not exact_match("Harrow", ["Ada Harrow"])
    assert not exact_match("Ada Harrow of Velora", ["Ada Harrow"])


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [
        # 2 words in common, 3 given, 2 right: 2 * 2 / 5
        ("Ada Harrow pilot", ["Ada Harrow"], 0.8),
        # "bell" once in common: 2 * 1 / (3 + 2)
        ("bell bell bell", ["bell tower"], 0.4),
        # twice in common: 2 * 2 / (3 + 2)
        ("bell bell bell", ["bell bell"], 0.8),
        # the best of the accepted: 2 * 1 / (1 + 2) against 0
        ("harrow", ["Sato", "Ada Harrow"], 2 / 3),
        ("x", ["y"], 0.0),
        ("the", ["Ada"], 0.0),
        ("the", ["a"], 1.0),
    ],
)
def test_f1_by_hand(answer, accepted, value):
    assert f1_score(answer, accepted) == pytest.approx(value)


def test_episode_in_full():
    env = small(topk=1)
    assert env.reset(options=TASK) == ("Question: Who founded Velora?", {"success": False})
    running = {"success": False, "invalid_action": False}
    assert env.state_key() == "searched:"
    assert env.step("<search> who founded Velora </search>") == (
        "<information>Doc 1(Title: Velora) A town on the Sihtalev River, founded by Ada Harrow."
        "</information>",
        0.0,
        False,
        False,
        running,
    )
    assert env.step("<search>zebra</search>")[0] == (
        "<information>No passage was found.</information>"
    )
    assert env.queries == ["who founded Velora", "zebra"]
    assert env.state_key() == "searched:\nwho founded Velora\nzebra"
    ended = {"success": True, "invalid_action": False}
    assert env.step("<answer>a. harrow</answer>") == (
        "Your answer is right.",
        1.0,
        True,
        False,
        ended,
    )


def test_wrong_answer_ends_without_reward():
    env = small()
    env.reset(options=TASK)
    ended = {"success": False, "invalid_action": False}
    assert env.step("<answer>Ada</answer>") == ("Your answer is wrong.", 0.0, True, False, ended)


def test_f1_reward_leaves_success_to_the_exact_match():
    env = small(reward="f1")
    env.reset(options=TASK)
    _, reward, terminated, _, info = env.step("<answer>Ada</answer>")
    assert (reward, terminated, info["success"]) == (pytest.approx(2 / 3), True, False)
    env.reset(options=TASK)
    assert env.step("<answer>Ada Harrow</answer>")[1] == 1.0


@pytest.mark.parametrize(
    "action", ["", "Ada", "<search></search>", "<answer> </answer>", "<go>x</go>", "<search>x"]
)
def test_invalid_action_changes_nothing(action):
    env = small()
    env.reset(options=TASK)
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == f"invalid action: {env.action_format.describe()}"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": True}
    assert env.queries == []
    assert env.step("<answer>Ada Harrow</answer>")[1] == 1.0


def test_step_needs_a_running_episode():
    env = small()
    with pytest.raises(RuntimeError, match=r"SearchQA got a step while no episode .* call `reset`"):
        env.step("<search>x</search>")
    assert env.state_key() is None
    env.reset(options=TASK)
    env.step("<answer>x</answer>")
    with pytest.raises(RuntimeError, match="no episode was running"):
        env.step("<answer>x</answer>")
    env.reset(options=TASK)
    env.step("<search>x</search>")


@pytest.mark.parametrize("answers", [None, [], "Ada Harrow"])
def test_incomplete_task_is_refused(answers):
    with pytest.raises(ValueError, match=r"expected a list of accepted answers; add the column"):
        small().reset(options={"question": "Who?", "answers": answers})


def test_same_seed_same_episode():
    def play(seed):
        env = make_env("SearchQA-v1")
        oracle = QuestionOracle()
        events = [env.reset(seed=seed)]
        while not events[-1][-1]["success"]:
            events.append(env.step(oracle.act(env)))
        return events

    episodes = [play(seed) for seed in range(20)]
    assert [play(seed) for seed in range(20)] == episodes
    assert len({events[0][0] for events in episodes}) > 10


def test_oracle_searches_and_answers():
    env, oracle = make_env("SearchQA-v1"), QuestionOracle()
    with pytest.raises(ValueError, match="call `reset` first"):
        oracle.act(env)
    for task in SearchQA.make_tasks(60, split="eval"):
        env.reset(options=task)
        found, reward, terminated, _, info = env.step(oracle.act(env))
        assert found.startswith("<information>Doc 1(Title: ")
        assert (reward, terminated) == (0.0, False)
        _, reward, terminated, _, info = env.step(oracle.act(env))
        assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_demo_questions_of_one_passage_are_answered_by_one_search():
    env, oracle = make_env("SearchQA-v1"), QuestionOracle()
    tasks = [t for t in SearchQA.make_tasks(300, split="train") if "the " not in t["question"][9:]]
    tasks = [
        t for t in tasks if "founder" not in t["question"] and "birthplace" not in t["question"]
    ]
    for task in tasks:
        env.reset(options=task)
        assert task["answers"][0] in env.step(oracle.act(env))[0], task
    assert len(tasks) > 50


def test_splits_are_disjoint():
    # As many as the trainers ask for where the user says nothing.
    train = SearchQA.make_tasks(512, split="train")
    held_out = SearchQA.make_tasks(64, split="eval")
    questions = [task["question"] for task in [*train, *held_out]]
    assert len(set(questions)) == 576
    assert len({task["seed"] for task in [*train, *held_out]}) == 576
    assert SearchQA.make_tasks(9, split="train") == train[:9]
    with pytest.raises(
        ValueError, match=r"count=9999 tasks .* the demo holds only \d+ for it; ask"
    ):
        SearchQA.make_tasks(9999, split="train")
    with pytest.raises(ValueError, match="got 'test', expected 'train' or 'eval'"):
        SearchQA.make_tasks(1, split="test")


def hotpot(number):
    return {
        "question": f"What is made up number {number}?",
        "answer": f"answer {number}",
        "context": [[f"Thing{number}", [f"Thing{number} is answer {number}."]]],
    }


@pytest.fixture
def files(tmp_path):
    """Made-up questions in HotpotQA's form: 40 for training, 10 others."""
    for name, numbers in (("train", range(40)), ("dev", range(35, 50))):
        (tmp_path / f"{name}.json").write_text(json.dumps([hotpot(n) for n in numbers]))
    return {"data": str(tmp_path / "train.json"), "format": "hotpotqa"}, tmp_path


def test_tasks_come_from_the_file(files):
    arguments, folder = files
    specs = {"": resolve_environment("SearchQA-v1", arguments)}
    train, held_out = task_dataset(specs, 30, "train"), task_dataset(specs, 1, "eval")
    refuse_unknown_columns(specs, train)
    for row in [*train, *held_out]:
        number = row["question"].removeprefix("What is made up number ").removesuffix("?")
        assert row["answers"] == [f"answer {number}"]
    assert not set(train["question"]) & set(held_out["question"])
    arguments["eval_data"] = str(folder / "dev.json")
    specs = {"": resolve_environment("SearchQA-v1", arguments)}
    assert len(task_dataset(specs, 40, "train")) == 40
    asked = {row["question"] for row in task_dataset(specs, 10, "eval")}
    assert asked == {f"What is made up number {n}?" for n in range(40, 50)}
    with pytest.raises(ValueError, match=r"dev\.json holds only 10 for it; ask"):
        task_dataset(specs, 11, "eval")


def test_own_passages_of_both_files_are_found(files):
    arguments, folder = files
    env = SearchQA(**arguments, eval_data=str(folder / "dev.json"))
    env.reset(options=TASK)
    for number in (3, 45):
        assert f"answer {number}." in env.step(f"<search>Thing{number}</search>")[0]
    again = SearchQA(**arguments, eval_data=str(folder / "dev.json"))
    assert again.retriever is env.retriever


def test_corpus_of_its_own(files):
    arguments, folder = files
    (folder / "corpus.jsonl").write_text(json.dumps({"contents": '"Velora"\nA town.'}) + "\n")
    env = SearchQA(**arguments, corpus=str(folder / "corpus.jsonl"))
    env.reset(seed=0)
    assert "Doc 1(Title: Velora) A town." in env.step("<search>velora</search>")[0]
    assert "No passage" in env.step("<search>Thing3</search>")[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"reward": "bleu"}, "Got reward='bleu', expected 'em' or 'f1'"),
        ({"topk": 0}, "Got topk=0, expected 1 or more"),
        ({"max_passage_chars": 0}, "Got max_passage_chars=0, expected 1 or more"),
        ({"format": "nq"}, "format='nq' .* without `data`"),
        ({"eval_data": "x"}, "eval_data='x' without `data`"),
        ({"data": "x"}, "data='x' with format=None, expected one of the formats hotpotqa, "),
        ({"data": "x", "format": "medqa"}, "format='medqa', expected one of the formats"),
        ({"corpus": "x", "retriever": "http://x/"}, "expected one of them"),
        ({"retriever": "x"}, "expected an address"),
        ({"retriever": "http://x/", "timeout": 0}, "timeout=0 seconds"),
        ({"corpus": "none.jsonl"}, r"none\.jsonl cannot be read"),
    ],
)
def test_constructor_refuses(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        SearchQA(**arguments)


def test_questions_without_passages_need_something_to_search(tmp_path):
    path = tmp_path / "nq.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": ["a"]}) + "\n")
    with pytest.raises(ValueError, match=r"come without passages.*give a file of passages"):
        SearchQA(data=str(path), format="nq")
    assert SearchQA(data=str(path), format="nq", retriever="http://127.0.0.1:1/retrieve")


def test_gymnasium_accepts_it():
    env = make_env("SearchQA-v1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env_reset_passive_checker(env, seed=0)
        actions = ("nothing", "<search>Velora</search>", "<answer>x</answer>")
        results = [env_step_passive_checker(env, action) for action in actions]
    assert env.reward_range == (0.0, 1.0)
    for one in results:
        assert [type(part) for part in one] == [str, float, bool, bool, dict]


class Says(Waves):
    """Gives the same answers in every episode, in the tokens of the embedded policy."""

    def __init__(self, tokenizer, *answers):
        self.tokenizer, self.answers, self.asked = tokenizer, answers, 0

    def generate(self, requests):
        text = self.answers[self.asked]
        self.asked += 1
        ids = (*self.tokenizer.encode(text), self.tokenizer.eos_token_id)
        return [Sample(ids=ids, logprobs=(0.0,) * len(ids), truncated=False) for _ in requests]


def play(env, *answers):
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    rollout = Rollout(
        engine=Says(tokenizer, *answers),
        chat=ChatFormat(tokenizer),
        stop_ids=frozenset({tokenizer.eos_token_id}),
        limits=Limits(max_tokens_per_turn=400),
    )
    turns = env_spec("SearchQA-v1").max_turns
    start = Start(task=TASK, group=0, member=0, seed=(0, 0, 0), max_turns=turns)
    (trajectory,) = collect([start], Environments({"": lambda: env}), rollout)
    return trajectory, tokenizer


def test_rollout_trains_on_searches_and_answers_alone():
    thought = "<think>the town</think> "
    trajectory, tokenizer = play(
        small(topk=1), f"{thought}<search>Velora</search>", f"{thought}<answer>Ada Harrow</answer>"
    )
    assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
    assert trajectory.score == 1.0
    first, second = trajectory.turns
    assert first.action == "<search>Velora</search>"
    shown = tokenizer.decode(second.observation_ids)
    assert "<information>Doc 1(Title: Velora) A town on the Sihtalev River" in shown
    for turn, action in ((first, first.action), (second, "<answer>Ada Harrow</answer>")):
        marked = [
            i
            for i, kind in zip(turn.response_ids, turn.token_kinds, strict=True)
            if kind == TokenKind.ACTION
        ]
        assert tokenizer.decode(marked[:-1]).strip() == action
        assert marked[-1] == tokenizer.eos_token_id
        assert "information" not in tokenizer.decode(turn.response_ids)


def test_rollout_cuts_after_the_fifth_search():
    trajectory, _ = play(small(), *["<search>Velora</search>"] * 5)
    assert trajectory.stop is StopReason.TURN_LIMIT
    assert (len(trajectory.turns), trajectory.score, trajectory.success) == (5, 0.0, False)


def test_a_failed_search_fails_the_episode():
    env = SearchQA(retriever=Broken())
    trajectory, _ = play(env, "<search>Velora</search>")
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.error == "RetrieverError: no answer to Velora for 3"
    assert env.queries == []
