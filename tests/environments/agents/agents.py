"""Agents for the tests, and a player that gives them scripted responses."""

import json
import urllib.error
import urllib.request

YES = {"content": "yes", "finish_reason": "stop", "tokens": [["yes", -0.5]]}


def call(place, text="hi", **fields):
    """The text of an answer, by the standard library alone."""
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"messages": messages, **fields}).encode()
    url = f"{place.base_url}/chat/completions"
    request = urllib.request.Request(url, body, {"authorization": f"Bearer {place.api_key}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["error"]["code"]) from None


def play(env, *answers, seed=1, options=None):
    """Rewards and infos of an episode that ends by itself; the last answer is given again and again."""
    answers = list(answers or (YES,))
    env.reset(seed=seed, options=options)
    rewards, infos, done = [], [], False
    while not done:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        observation, reward, done, truncated, info = env.step(answer)
        assert (observation, truncated) == ("", False)
        rewards.append(reward)
        infos.append(info)
    return rewards, infos


PRELUDE = """
import json, os, sys, time, urllib.request

def post(path, body):
    url = os.environ["OPENAI_BASE_URL"] + path
    key = os.environ["OPENAI_API_KEY"]
    request = urllib.request.Request(url, json.dumps(body).encode(), {"authorization": "Bearer " + key})
    return json.load(urllib.request.urlopen(request))

def call(text="hi"):
    answer = post("/chat/completions", {"messages": [{"role": "user", "content": text}]})
    return answer["choices"][0]["message"]["content"]
"""
"""The beginning of a program."""
