"""A service: requests with one key that have nothing to do with each other.

Mutations seen red: one request at a time; more than asked for; one that nobody waits for handed out; a retry joined to
another's request; a refused request kept for its repeats; the queue without a bound; closed with the words of an episode.
"""

import pytest

from agentic_trl.endpoint.refusals import RefusedError
from agentic_trl.endpoint.service import Service
from agentic_trl.endpoint.talk import ChatAnswer, ChatRequest


def request(text="hi", **more):
    return ChatRequest(messages=({"role": "user", "content": text},), **more)


@pytest.fixture
def service():
    return Service("key", model="some", most_waiting=3)


def test_requests_are_handed_out_while_others_are_being_answered(service):
    asks = [service.ask(request(one), one.encode()) for one in "abc"]
    first = service.take(2)
    assert [one.messages[0]["content"] for one in first] == ["a", "b"]
    (last,) = service.take(2)
    assert service.take(2) == []
    service.answer(last, ChatAnswer(content="3"))
    service.answer(first[0], ChatAnswer(content="1"))
    assert [one.future.done() for one in asks] == [True, False, True]
    assert (asks[0].future.result().content, asks[2].future.result().content) == ("1", "3")


def test_a_request_that_nobody_waits_for_is_dropped(service):
    gone, kept = service.ask(request("a"), b"a"), service.ask(request("b"), b"b")
    gone.lost()
    assert service.take(1) == [kept.request]
    assert service.take(1) == []


def test_a_repeat_joins_a_request_that_nobody_waits_for(service):
    first = service.ask(request(), b"a")
    (taken,) = service.take(1)
    assert service.ask(request(retry=1), b"a") is not first  # maybe another client's
    first.lost()
    assert service.ask(request(), b"a") is first  # its connection broke
    service.answer(taken, ChatAnswer(content="1"))
    assert first.future.result().content == "1"


def test_a_request_that_was_refused_is_asked_anew(service):
    first = service.ask(request(), b"a")
    (taken,) = service.take(1)
    service.answer(taken, RefusedError("code", "sentence", status=500))
    assert first.future.exception().status == 500
    assert service.ask(request(retry=1), b"a") is not first


def test_waiting_requests_are_bounded(service):
    for one in "abc":
        service.ask(request(one), one.encode())
    with pytest.raises(RefusedError, match="while 3 others of this key wait") as caught:
        service.ask(request("d"), b"d")
    assert caught.value.status == 429
    assert caught.value.headers["x-should-retry"] == "true"  # it passes
    service.take(1)
    service.ask(request("d"), b"d").lost()  # nobody waits for it, and it does not count
    service.ask(request("e"), b"e")


def test_no_rewards_are_taken(service):
    with pytest.raises(RefusedError, match="Got a reward, expected none") as caught:
        service.report(reward=1.0)
    assert caught.value.status == 404


def test_the_end_refuses_what_waits_and_what_comes(service):
    asks = [service.ask(request(one), one.encode()) for one in "ab"]
    (taken,) = service.take(1)
    service.close()
    assert [one.future.exception().code for one in asks] == ["server_ended"] * 2
    service.answer(taken, ChatAnswer())  # too late, and no error
    assert service.take(1, timeout=60) == []
    with pytest.raises(RefusedError, match="The server was ended"):
        service.ask(request(), b"c")
