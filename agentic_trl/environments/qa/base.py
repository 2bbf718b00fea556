"""Base of environments of questions: where questions come from, the search tool, the episode.

``SearchQA`` and ``MedicalQA`` add how a question reads and how an answer is graded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from agentic_trl.environments.base import ActionFormat, StepResult, TextEnv, require_running
from agentic_trl.environments.qa.corpus import once
from agentic_trl.environments.qa.data import Question, read_questions, split_questions
from agentic_trl.environments.qa.retrieval import (
    BM25Retriever,
    HttpRetriever,
    Retriever,
    index_of_file,
    show,
)
from agentic_trl.task_splits import first_seed, first_tasks

OWN = "own"
"""Value of ``corpus`` that stands for the passages that come with the questions."""


class Source(NamedTuple):
    """Origin of questions."""

    demo: Callable[[], tuple[Question, ...]]
    """Made-up questions, used without a file."""
    data: str | None
    """File of questions."""
    format: str | None
    """Its format."""
    eval_data: str | None
    """File of questions for evaluation, of the same format."""


@once
def _splits(source: Source) -> dict[str, list[Question]]:
    if source.data is None or source.format is None:
        return split_questions(source.demo(), None)
    held_out = read_questions(source.eval_data, source.format) if source.eval_data else None
    return split_questions(read_questions(source.data, source.format), held_out)


@once
def _own_index(source: Source) -> BM25Retriever | None:
    """Return the index of all passages that come with the questions, each once; ``None`` without any."""
    splits = _splits(source)
    passages = {p: None for part in ("train", "eval") for q in splits[part] for p in q.passages}
    return BM25Retriever(list(passages)) if passages else None


class QuestionEnv(TextEnv):
    """A question, searches as far as there is something to search, and one answer, which ends it.

    After ``reset``, ``question`` holds the task and ``queries`` the searches so far, for reading.
    """

    action_format = ActionFormat(tags=("search", "answer"))
    reward_range = (0.0, 1.0)

    formats: ClassVar[Sequence[str]]
    """Formats of files that hold such questions."""
    demo: ClassVar[Callable[[], tuple[Question, ...]]]
    """Made-up questions for use without a file."""
    path_arguments: ClassVar = {"data": (), "eval_data": (), "corpus": (OWN,)}
    default_corpus: ClassVar[str | None] = None
    """Value of ``corpus`` if neither it nor a retriever is given; ``None``: no search tool."""

    def __init__(
        self,
        *,
        data: str | None = None,
        format: str | None = None,
        eval_data: str | None = None,
        corpus: str | None = None,
        retriever: str | Retriever | None = None,
        topk: int = 3,
        max_passage_chars: int = 1000,
        timeout: float = 10.0,
    ) -> None:
        """Set where questions and passages come from.

        Args:
            data: File of questions; ``None`` takes made-up ones.
            format: Its format, one of ``formats``.
            eval_data: File of questions for evaluation, of the same format; ``None`` holds out one in
                eight of ``data``.
            corpus: File of passages, JSON lines as for ``corpus.read_corpus``, or ``"own"``: the
                passages that come with the questions. ``None`` is no corpus with a ``retriever``, and
                ``default_corpus`` without.
            retriever: Address of a server with Search-R1's protocol, or an object with ``search``.
            topk: Passages that a search shows at most, 1 or more.
            max_passage_chars: Characters of a passage that a search shows at most, 1 or more.
            timeout: Seconds that a search of a server may take, above 0.

        Raises:
            ImportError: If a corpus is to be searched and ``bm25s`` is not installed.
            ValueError: If an argument is out of range, or a file cannot be read.
        """
        self.source = self._source(data, format, eval_data)
        for name, value in (("topk", topk), ("max_passage_chars", max_passage_chars)):
            if value < 1:
                raise ValueError(f"Got {name}={value}, expected 1 or more.")
        if corpus is not None and retriever is not None:
            raise ValueError(
                f"Got corpus={corpus!r} and retriever={retriever!r}, expected one of them: a server "
                "has its own corpus."
            )
        corpus = self.default_corpus if corpus is None and retriever is None else corpus
        self.corpus = corpus
        self.topk = topk
        self.max_passage_chars = max_passage_chars
        self.retriever = self._open(corpus, retriever, timeout)
        if self.retriever is None:
            self.action_format = ActionFormat(tags=("answer",))
        self.question: Question | None = None
        self.queries: list[str] = []
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask a question.

        Args:
            seed: Chooses a training question, if the task holds none.
            options: The columns of ``task_columns``; without ``question``, the seed chooses.

        Returns:
            The question, and ``info`` with ``success``.

        Raises:
            ValueError: If the task is incomplete.
        """
        super().reset(seed=seed)
        task = {key: (options or {}).get(key) for key in self.task_columns or ()}
        if task["question"] is None:
            questions = _splits(self.source)["train"]
            chosen = questions[int(self.np_random.integers(len(questions)))]
            task = dict(self._row(chosen))
        self.question = self._read(task)
        self.queries = []
        self._running = True
        return self._ask(task), {"success": False}

    def step(self, action: str) -> StepResult:
        """Search, or answer.

        Args:
            action: ``<search>words</search>`` or ``<answer>text</answer>``.

        Returns:
            The passages found, or the verdict on the answer; reward, 0 to 1 for an answer; terminated
            (after an answer), truncated (always False), and ``info`` with ``success`` and
            ``invalid_action``.

        Raises:
            RuntimeError: If no episode is running, or the search failed.
        """
        question = require_running(self.question if self._running else None, self)
        info = {"success": False, "invalid_action": False}
        name, content = self.action_format.split(action)
        if name == "search" and content and self.retriever is not None:
            found = self.retriever.search(content, self.topk)
            self.queries.append(content)
            return show(found, self.max_passage_chars), 0.0, False, False, info
        grade = self._grade(question, content) if name == "answer" and content else None
        if grade is None:
            info["invalid_action"] = True
            return f"invalid action: {self._hint()}", 0.0, False, False, info
        self._running = False
        reward, info["success"] = grade
        verdict = "right" if info["success"] else "wrong"
        return f"Your answer is {verdict}.", reward, True, False, info

    def state_key(self) -> str | None:
        """Return the searches so far, a line each, or ``None`` before the first ``reset``."""
        return None if self.question is None else "\n".join(["searched:", *self.queries])

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return ``count`` questions; none is in both splits.

        Args:
            count: Number of tasks, 0 or more.
            split: ``"train"`` or ``"eval"``. With ``eval_data``, evaluation has the questions of that
                file that training has not; without, one in eight of ``data``, chosen by a hash.
            **kwargs: Arguments of the constructor.

        Returns:
            Rows with ``seed`` and ``task_columns``, the same at every call, in an order that a hash
            of the question decides.

        Raises:
            ValueError: If an argument is out of range, or there are fewer questions.
        """
        env = cls(**kwargs)
        first, source = first_seed(split), env.source
        place = (split == "eval" and source.eval_data) or source.data or "the demo"
        short = f"{place} holds only {{}} for it; ask for fewer, or give another file"
        questions = first_tasks(_splits(source)[split], count, split, short)
        return [{"seed": first + index, **env._row(one)} for index, one in enumerate(questions)]

    def _source(self, data: str | None, format: str | None, eval_data: str | None) -> Source:
        """Return where questions come from, the arguments checked.

        Raises:
            ValueError: If they do not fit together.
        """
        if data is None and (format is not None or eval_data is not None):
            raise ValueError(
                f"Got format={format!r} and eval_data={eval_data!r} without `data`, expected a file of "
                "questions; give its path as `data`."
            )
        if data is not None and format not in self.formats:
            raise ValueError(
                f"Got data={data!r} with format={format!r}, expected one of the formats "
                f"{', '.join(self.formats)}."
            )
        return Source(type(self).demo, data, format, eval_data)

    def _open(
        self, corpus: str | None, retriever: str | Retriever | None, timeout: float
    ) -> Retriever | None:
        """Return what is searched, or ``None``.

        Raises:
            ValueError: If the questions come without the passages that are to be searched.
        """
        if isinstance(retriever, str):
            return HttpRetriever(retriever, timeout=timeout)
        if corpus is None:
            return retriever
        if corpus != OWN:
            return index_of_file(corpus)
        index = _own_index(self.source)
        if index is None:
            raise ValueError(
                f"The questions of {self.source.data} come without passages, so that there is nothing to "
                "search; give a file of passages as `corpus`, or the address of a `retriever`."
            )
        return index

    def _row(self, question: Question) -> dict[str, Any]:
        """Return the task's columns for a question."""
        raise NotImplementedError

    def _read(self, task: Mapping[str, Any]) -> Question:
        """Return the question of a task's columns, or raise a ``ValueError``."""
        raise NotImplementedError

    def _ask(self, task: Mapping[str, Any]) -> str:
        """Return the first observation."""
        raise NotImplementedError

    def _grade(self, question: Question, answer: str) -> tuple[float, bool] | None:
        """Return reward and success of an answer, or ``None`` if it is none."""
        raise NotImplementedError

    def _hint(self) -> str:
        """Return what to do after an invalid action."""
        return self.action_format.describe()


class QuestionOracle:
    """The scripted policy that searches for the question, if it can, and then gives a right answer."""

    def act(self, env: QuestionEnv) -> str:
        """Return the next action, with its tags.

        Raises:
            ValueError: If no episode is running.
        """
        if env.question is None:
            raise ValueError(
                "QuestionOracle got an environment without an episode; call `reset` first."
            )
        if env.retriever is not None and not env.queries:
            return f"<search>{env.question.question}</search>"
        return f"<answer>{env.question.answers[0]}</answer>"
