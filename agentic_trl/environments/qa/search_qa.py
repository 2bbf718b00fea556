"""Questions with free answers, and a search tool: HotpotQA, Natural Questions and the like.

Tags, observations and reward are those of Search-R1 (arXiv 2503.09516).
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentic_trl.environments.qa.base import OWN, QuestionEnv
from agentic_trl.environments.qa.data import FREE_FORMATS, Question
from agentic_trl.environments.qa.demo import towns


class SearchQA(QuestionEnv):
    """Answer a question with the help of a search tool.

    ``<search>words</search>`` shows the best passages inside ``<information>``;
    ``<answer>text</answer>`` ends the episode. Reward 0 to 1 for the answer: the exact match, 0 or 1,
    or the F1 score; searches are free. Success is the exact match. Without a file, the questions and
    passages are made up.
    """

    formats = tuple(FREE_FORMATS)
    demo = staticmethod(towns)
    default_corpus = OWN
    task_columns = ("question", "answers")
    instructions = (
        "Answer the question. Reason first, every time you get new information. If you lack some "
        "knowledge, call a search engine with <search>words</search>: it returns the best passages "
        "between <information> and </information>. If you need no further knowledge, give the answer, "
        "without detailed illustrations, for example <answer>Beijing</answer>; it is final."
    )

    def __init__(self, *, reward: str = "em", **source: Any) -> None:
        """Set the reward, and where questions and passages come from.

        Args:
            reward: ``"em"`` or ``"f1"``.
            **source: Arguments of ``QuestionEnv``; the formats are those of ``data.FREE_FORMATS``.

        Raises:
            ImportError: If a corpus is to be searched and ``bm25s`` is not installed.
            ValueError: If an argument is out of range, or a file cannot be read.
        """
        if reward not in {"em", "f1"}:
            raise ValueError(f"Got reward={reward!r}, expected 'em' or 'f1'.")
        self.reward = reward
        super().__init__(**source)

    def _row(self, question: Question) -> dict[str, Any]:
        return {"question": question.question, "answers": list(question.answers)}

    def _read(self, task: Mapping[str, Any]) -> Question:
        answers = task["answers"]
        if not answers or isinstance(answers, str):
            raise ValueError(
                f"Got a task with the question {task['question']!r} and answers={answers!r}, expected a "
                "list of accepted answers; add the column `answers`."
            )
        return Question(task["question"], tuple(answers))

    def _ask(self, task: Mapping[str, Any]) -> str:
        return f"Question: {task['question']}"

    def _grade(self, question: Question, answer: str) -> tuple[float, bool]:
        exact = exact_match(answer, question.answers)
        return (f1_score(answer, question.answers) if self.reward == "f1" else float(exact)), exact


def normalize_answer(text: str) -> str:
    """Return a text as SQuAD's evaluation compares it.

    Returns:
        Lower case, without ASCII punctuation, then without the words a, an, the, then with single
        spaces.
    """
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(answer: str, accepted: Sequence[str]) -> bool:
    """Return whether an answer equals an accepted one once both are normalised."""
    return normalize_answer(answer) in map(normalize_answer, accepted)


def f1_score(answer: str, accepted: Sequence[str]) -> float:
    """Return the F1 score of the words in common with the closest accepted answer.

    Args:
        answer: What was answered.
        accepted: Accepted answers, one or more.

    Returns:
        0 to 1; without words on one side, 1 for none on either.
    """
    return max(_f1(normalize_answer(answer).split(), normalize_answer(a).split()) for a in accepted)


def _f1(given: list[str], right: list[str]) -> float:
    if not given or not right:
        return float(given == right)
    common = sum((Counter(given) & Counter(right)).values())
    return 2 * common / (len(given) + len(right))
