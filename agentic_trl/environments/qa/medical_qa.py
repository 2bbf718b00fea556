"""Medical multiple choice, with or without a search tool: MedQA, MedMCQA, PubMedQA."""

import re
from collections.abc import Mapping
from typing import Any

from agentic_trl.environments.qa.base import OWN, QuestionEnv
from agentic_trl.environments.qa.data import CHOICE_FORMATS, LETTERS, Question
from agentic_trl.environments.qa.demo import medicine

_SEARCH = (
    " If you lack some knowledge, call a search engine with <search>words</search>: it returns the best "
    "passages between <information> and </information>."
)


class MedicalQA(QuestionEnv):
    """Choose one of several options, after searches if there is something to search.

    ``<answer>B</answer>`` ends the episode, with reward 1 for the right option and 0 for another; see
    ``read_choice`` for what names an option. Anything else is an invalid action and ends nothing.
    Without a file, questions and passages are made up: they are no medicine.
    """

    formats = tuple(CHOICE_FORMATS)
    demo = staticmethod(medicine)
    task_columns = ("question", "options", "answers", "context")

    def __init__(self, **source: Any) -> None:
        """Set where questions and passages come from.

        Args:
            **source: Arguments of ``QuestionEnv``; the formats are those of ``data.CHOICE_FORMATS``.
                Passages that come with the questions are shown, or with ``corpus="own"`` searched.

        Raises:
            ImportError: If a corpus is to be searched and ``bm25s`` is not installed.
            ValueError: If an argument is out of range, or a file cannot be read.
        """
        super().__init__(**source)
        self.instructions = (
            "Answer the medical question with the letter of the right option. Reason first, every time "
            "you get new information."
            f"{_SEARCH if self.retriever is not None else ''} Then give the letter alone, for example "
            "<answer>B</answer>; it is final."
        )

    def _row(self, question: Question) -> dict[str, Any]:
        # The demo's passages hold the answer: without a search tool they would give it away.
        shown = self.source.data is not None and self.corpus != OWN
        return {
            "question": question.question,
            "options": list(question.options),
            "answers": list(question.answers),
            "context": "\n".join(one.text for one in question.passages) if shown else "",
        }

    def _read(self, task: Mapping[str, Any]) -> Question:
        options, answers = tuple(task["options"] or ()), tuple(task["answers"] or ())
        listed = not isinstance(task["options"], str)
        if not listed or len(answers) != 1 or answers[0] not in tuple(LETTERS[: len(options)]):
            raise ValueError(
                f"Got a task with options={task['options']!r} and answers={answers}, expected a list of options and "
                "a list with the letter of the right one, A for the first; correct these columns."
            )
        return Question(task["question"], answers, options)

    def _ask(self, task: Mapping[str, Any]) -> str:
        lines = [f"{LETTERS[i]}. {option}" for i, option in enumerate(task["options"])]
        context = [f"Context: {task['context']}\n"] if task["context"] else []
        return "\n".join([*context, f"Question: {task['question']}", *lines])

    def _grade(self, question: Question, answer: str) -> tuple[float, bool] | None:
        letter = read_choice(answer, question.options)
        right = letter == question.answers[0]
        return None if letter is None else (float(right), right)

    def _hint(self) -> str:
        last = LETTERS[len(self.question.options) - 1] if self.question else ""
        return f"{super()._hint()} The answer is one letter, A to {last}."


def read_choice(answer: str, options: tuple[str, ...]) -> str | None:
    """Return the letter of the option that an answer names.

    An option is named by its letter, ``B``, ``(B)``, ``B.``, ``B)`` or ``B:``, in any case; by its
    text; or by both, ``B. aspirin``, if they agree. Texts are compared without regard to case, spaces
    and a full stop at the end. A letter alone is a letter, even if an option's text is one.

    Returns:
        The letter, or ``None`` if the answer names no option, or more than one.
    """
    texts = [_plain(option) for option in options]
    match = re.fullmatch(
        r"(?:\(([A-Za-z])\)|([A-Za-z])\)?)[.:]?(?:\s+(.+))?", answer.strip(), re.DOTALL
    )
    if match:
        number = LETTERS.index((match[1] or match[2]).upper())
        agrees = number < len(options) and (match[3] is None or _plain(match[3]) == texts[number])
        if agrees:
            return LETTERS[number]
    named = [i for i, text in enumerate(texts) if text and text == _plain(answer)]
    return LETTERS[named[0]] if len(named) == 1 else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).removesuffix(".")
