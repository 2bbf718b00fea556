"""The SDKs' own retries, forced by a proxy that cuts connections: the same answer, one ask.

Mutations seen red: the header of retries unread; a connection that broke not noted (``Ask.lost`` does nothing); an answer
noted as written though the connection broke in its stream; a path left out of the hash.
"""

import socket
import threading
import time

import anthropic
import openai
import pytest

from tests.endpoint.served import USER, CuttingProxy, address, post, raw_request, served

TEXTS = ({"content": "one"}, {"content": "two"}, {"content": "three"})


@pytest.fixture
def slow():
    """A session whose brain waits for an event before each answer."""
    event = threading.Event()
    with served(*TEXTS, wait=event) as one:
        one.event = event
        yield one


def cut(one, monkeypatch, ask, *, cuts, after=0):
    """The answer of a client behind a proxy that cuts connections once the brain has been asked."""
    proxy = CuttingProxy(one.endpoint, cuts=cuts, after=after)
    proxy.reached = threading.Event()
    found = []
    thread = threading.Thread(target=lambda: found.append(ask(proxy.url)))
    thread.start()
    until(lambda: one.asked)
    proxy.reached.set()
    until(lambda: proxy.connections == cuts + 1)
    one.event.set()
    thread.join(20)
    proxy.close()
    return found[0], proxy


def until(true):
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    assert true()


def ask_openai(one, *, stream=False):
    def ask(url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=one.key, max_retries=3)
        if not stream:
            return (
                client.chat.completions.create(model="m", messages=USER).choices[0].message.content
            )
        chunks = client.chat.completions.create(model="m", messages=USER, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    return ask


def ask_anthropic(one):
    def ask(url):
        client = anthropic.Anthropic(base_url=url, api_key=one.key, max_retries=3)
        return client.messages.create(model="m", max_tokens=9, messages=USER).content[0].text

    return ask


@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])
def test_connections_that_break_before_the_answer(slow, monkeypatch, ask, cuts):
    answer, proxy = cut(slow, monkeypatch, ask(slow), cuts=cuts)
    assert (answer, proxy.connections, len(slow.asked)) == ("one", cuts + 1, 1)


def test_a_connection_that_breaks_before_a_stream(slow, monkeypatch):
    answer, _ = cut(slow, monkeypatch, ask_openai(slow, stream=True), cuts=1)
    assert (answer, len(slow.asked)) == ("one", 1)


def test_a_connection_that_breaks_within_the_answer():
    with served(*TEXTS) as one:
        proxy = CuttingProxy(one.endpoint, cuts=1, after=40)
        assert ask_openai(one)(proxy.url) == "one"
        assert (proxy.connections, len(one.asked)) == (2, 1)
        proxy.close()


def test_a_request_that_says_that_it_is_one_again():
    with served(*TEXTS) as one:
        body = {"messages": USER}
        said = [
            post(one.endpoint, "/v1/chat/completions", body, one.key, headers=headers)[1]
            for headers in ({}, {"x-stainless-retry-count": "1"}, {"x-stainless-retry-count": "0"})
        ]
    texts = [answer["choices"][0]["message"]["content"] for answer in said]
    assert texts == ["one", "one", "two"]
    assert len(one.asked) == 2


def test_the_same_body_at_another_interface_is_another_request():
    with served(*TEXTS) as one:
        body = {"messages": USER, "max_tokens": 3}
        headers = {"x-stainless-retry-count": "1"}
        post(one.endpoint, "/v1/chat/completions", body, one.key)
        answer = post(one.endpoint, "/v1/messages", body, one.key, headers=headers)[1]
    assert answer["content"][0]["text"] == "two"


@pytest.mark.parametrize("count", ["x", "-1", "²", "1" * 5000])
def test_a_count_of_retries_that_is_none(hello, count):
    headers = {"x-stainless-retry-count": count.encode("latin-1")}
    for _ in range(2):
        assert (
            post(
                hello.endpoint,
                "/v1/chat/completions",
                {"messages": USER},
                hello.key,
                headers=headers,
            )[0]
            == 200
        )
    assert len(hello.asked) == 2


def test_a_client_that_leaves_and_comes_back_without_a_count(slow):
    with socket.create_connection(address(slow.endpoint)) as line:
        line.sendall(raw_request("/v1/chat/completions", {"messages": USER}, slow.key))
        until(lambda: slow.asked)
    until(lambda: slow.session._taken[0].orphaned)  # the server has heard that it has gone
    slow.event.set()
    for expected in ("one", "two"):
        answer = post(slow.endpoint, "/v1/chat/completions", raw_body(), slow.key)[1]
        assert answer["choices"][0]["message"]["content"] == expected
    assert len(slow.asked) == 2


def raw_body():
    return raw_request("/", {"messages": USER}, "").split(b"\r\n\r\n")[1]


def test_an_end_is_not_tried_again(hello):
    hello.session.close()
    proxy = CuttingProxy(hello.endpoint, cuts=0)
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=hello.key, max_retries=5)
    with pytest.raises(openai.BadRequestError, match="The episode is over") as caught:
        client.chat.completions.create(model="m", messages=USER)
    assert caught.value.code == "episode_ended"
    assert proxy.connections == 1
    proxy.close()


def test_what_waits_at_the_end_is_refused(slow):
    client = openai.OpenAI(base_url=slow.endpoint.base_url, api_key=slow.key, max_retries=5)

    def end():
        until(lambda: slow.asked)
        slow.session.close("context_length_exceeded", "Too long.")

    threading.Thread(target=end).start()
    with pytest.raises(openai.BadRequestError, match=r"Too long\.") as caught:
        client.chat.completions.create(model="m", messages=USER)
    assert caught.value.code == "context_length_exceeded"
    assert len(slow.asked) == 1
    slow.event.set()
