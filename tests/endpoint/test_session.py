"""A session: requests queue, repeats are one ask, an end refuses all.

Mutations seen red: a repeat that is a new ask; a request whose connection waits taken for one that broke; a request handed
out before the one before is answered; an end that leaves a request waiting; rewards that are taken twice.
"""

import threading

import pytest

from agentic_trl.endpoint import asks as session_module
from agentic_trl.endpoint.refusals import RefusedError
from agentic_trl.endpoint.session import Ended, Session
from agentic_trl.endpoint.talk import ChatAnswer, ChatRequest


def request(text="hi", retry=0):
    return ChatRequest(messages=({"role": "user", "content": text},), retry=retry)


@pytest.fixture
def session():
    return Session("key")


def test_requests_are_answered_one_after_the_other(session):
    first, second = session.ask(request("1"), b"1"), session.ask(request("2"), b"2")
    asked = session.next(1)
    assert asked is first.request
    with pytest.raises(TimeoutError, match=r"nothing was asked for 0\.01 seconds"):
        session.next(0.01)
    session.answer(asked, ChatAnswer(content="one"))
    assert first.future.result(1).content == "one"
    assert session.next(1) is second.request
    assert not second.future.done()


def test_a_repeat_is_one_ask(session):
    first = session.ask(request(), b"1")
    assert session.ask(request(retry=1), b"1") is first
    asked = session.next(1)
    assert session.ask(request(retry=2), b"1") is first
    session.answer(asked, ChatAnswer(content="one"))
    first.written()
    assert session.ask(request(retry=3), b"1") is first
    with pytest.raises(TimeoutError, match="nothing was asked"):
        session.next(0.01)


def test_a_request_whose_connection_broke_is_repeated_without_saying_so(session):
    first = session.ask(request(), b"1")
    first.lost()
    assert session.ask(request(), b"1") is first
    assert session.ask(request(), b"1") is not first  # that one is waited for again


def test_of_several_the_one_that_nobody_waits_for_is_repeated(session):
    first, second = session.ask(request(), b"1"), session.ask(request(), b"1")
    first.lost()
    assert session.ask(request(retry=1), b"1") is first
    assert session.ask(request(retry=1), b"1") is second


def test_the_same_body_again_is_a_second_ask(session):
    first = session.ask(request(), b"1")
    assert session.ask(request(), b"1") is not first
    session.answer(session.next(1), ChatAnswer())
    first.written()
    assert session.ask(request(), b"1") is not first
    assert session.ask(request(retry=1), b"2") is not first


def test_a_late_loss_of_the_first_connection_does_not_undo_a_retry(session):
    first = session.ask(request(), b"1")
    assert session.ask(request(retry=1), b"1") is first
    first.lost()  # of the connection before
    assert session.ask(request(), b"1") is not first


def test_answers_are_kept_for_the_last_ones(session, monkeypatch):
    asks = []
    for number in range(session_module.KEPT + 1):
        asks.append(session.ask(request(str(number)), str(number).encode()))
        session.answer(session.next(1), ChatAnswer())
        asks[-1].written()
    assert session.ask(request("0", retry=1), b"0") is not asks[0]
    assert session.ask(request("1", retry=1), b"1") is asks[1]


def test_the_end_refuses_what_waits_and_what_comes(session):
    current, waiting = session.ask(request("1"), b"1"), session.ask(request("2"), b"2")
    asked = session.next(1)
    session.close("context_length_exceeded", "Too long.")
    session.close("episode_ended", "Later.")
    for ask in (current, waiting):
        with pytest.raises(RefusedError, match=r"Too long\.") as caught:
            ask.future.result(1)
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    with pytest.raises(RefusedError, match=r"Too long\."):
        session.ask(request(), b"3")
    with pytest.raises(RefusedError, match=r"Too long\."):
        session.report(reward=1.0)
    ended = Ended(code="context_length_exceeded", sentence="Too long.")
    assert session.next(1) == ended
    session.answer(asked, ChatAnswer())  # too late, and no error


def test_the_end_wakes_the_owner(session):
    found = []
    thread = threading.Thread(target=lambda: found.append(session.next(10)))
    thread.start()
    session.close()
    thread.join(5)
    assert found[0].code == "episode_ended"
    assert found[0].sentence.startswith("The episode is over: got a request after its end.")


def test_the_end_is_said_before_requests_that_wait(session):
    session.ask(request(), b"1")
    session.close()
    assert isinstance(session.next(1), Ended)


def test_an_answer_belongs_to_the_request_that_was_handed_out(session):
    session.ask(request(), b"1")
    session.ask(request(), b"2")
    first = session.next(1)
    with pytest.raises(
        ValueError, match="an answer to another request than one that was handed out"
    ):
        session.answer(request(), ChatAnswer())
    session.answer(first, ChatAnswer())
    with pytest.raises(
        ValueError, match="an answer to another request than one that was handed out"
    ):
        session.answer(first, ChatAnswer())


def test_waiting_requests_are_bounded(session):
    for number in range(session_module.MAX_WAITING):
        session.ask(request(), str(number).encode())
    with pytest.raises(RefusedError, match="while 64 others of this key wait") as caught:
        session.ask(request(), b"more")
    assert caught.value.status == 429
    session.next(1)
    session.ask(request(), b"more")


def test_rewards_add_up_until_they_are_taken(session):
    assert not session.posted
    session.report(reward=0.5)
    session.report(reward=0.25)
    assert (session.take_rewards(), session.take_rewards()) == (0.75, 0.0)
    assert session.posted
    assert session.verdict is None
    session.report(score=1.0, success=True)
    session.report(score=2.0)
    assert (session.verdict.score, session.verdict.success) == (2.0, None)


def test_a_key_is_compared_whole(session):
    assert session.opens_with("key")
    assert not any(map(session.opens_with, ("", "ke", "keys", "Key", "\udc80")))
