"""Which names are those of secrets, and what is left of values that hold one.

Mutations seen red: words not split at capitals; names matched as a whole; tokens of a tokenizer taken for secrets; the user of an address up
to the first ``@``; queries, headers, pairs and flags left as they are; a text looked at no further than its first name.
"""

import pytest

from agentic_trl.masking import is_secret, masked

SECRET = (
    *("secret_key", "aws_secret_access_key", "private_key", "access_key", "api_key_file"),
    *("accessToken", "dbPassword", "openaiApiKey", "APIKey", "apikey", "dbpassword"),
    *("passphrase", "credentials", "bearer", "auth", "cookies", "passwd", "--api-key"),
    *("X-Api-Key", "Authorization", "Set-Cookie", "OPENAI_API_KEY"),
    *("token", "tokens", "hub_token", "auth_token_value", "stop-tokens"),
)
SHOWN = (
    *("pad_token", "eos_token", "max_tokens_per_turn", "engine_max_cache_tokens", "maxNewTokens"),
    *("key", "keys", "monkey", "author", "tokenizer", "token_kinds", "state_key", ""),
)


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name):
    assert is_secret(name)
    assert masked({name: "abc"}) == masked({name: ["abc"]}) == {name: "..."}
    assert masked({name: 5}) == {name: 5}
    assert masked({name: None}) == {name: None}


@pytest.mark.parametrize("name", SHOWN)
def test_other_names(name):
    assert not is_secret(name)
    assert masked({name: "abc"}) == {name: "abc"}


CASES = {
    "query": ("https://h/x?y=1&api_key=abc&z=2#f", "https://h/x?y=1&api_key=...&z=2#f"),
    "first of a query": ("https://h/x?accessToken=a%20b", "https://h/x?accessToken=..."),
    "user": ("postgres://u:p@w@host/db?mail=a@b", "postgres://...@host/db?mail=a@b"),
    "no user": ("http://localhost:8000/v1", "http://localhost:8000/v1"),
    "bearer": ("Bearer xyz", "Bearer ..."),
    "pairs": ([["Authorization", "Bearer xyz"]], [["Authorization", "..."]]),
    "tuple": (("token", "xyz"), ("token", "...")),
    "no pair": (["token", "reward", "score"], ["token", "reward", "score"]),
    "flag": (["run", "--api-key", "abc", "-v"], ["run", "--api-key", "...", "-v"]),
    "flag of a number": (["run", "--max-tokens", "5"], ["run", "--max-tokens", "5"]),
    "flag with its value": ("--api-key=abc --n=3", "--api-key=... --n=3"),
    "header": ("Authorization: Basic abc, rest", "Authorization: ..., rest"),
    "text of a dictionary": ("{'api_key': 'a b', 'n': 1}", "{'api_key': '...', 'n': 1}"),
    "behind another name": ("note: a=password=abc", "note: a=password=..."),
    "nothing given": ("Your password:", "Your password:"),
    "plain text": ("Move: up. Say a token: b", "Move: up. Say a token: ..."),
    "nested": ({"a": [{"password": "x"}, 1.5]}, {"a": [{"password": "..."}, 1.5]}),
}


@pytest.mark.parametrize(("value", "shown"), CASES.values(), ids=CASES)
def test_what_is_left_of_a_value(value, shown):
    assert masked(value) == shown
    assert masked(shown) == shown


def test_objects_stay_what_they_are():
    thing = object()
    assert masked([thing, len]) == [thing, len]
    assert masked({"password": thing}) == {"password": "..."}
