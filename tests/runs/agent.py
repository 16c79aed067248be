"""An agent of some turns, which knows an address and a key alone."""

import json
import os
import sys
import urllib.request


def send(path, body):
    url = f"{os.environ['OPENAI_BASE_URL']}/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as found:
        return json.load(found)


def main():
    messages = [{"role": "user", "content": json.load(sys.stdin)["prompt"]}]
    turns, message = 0, {"content": " "}
    while turns < 3 and len(message["content"]) % 2:
        message = send("chat/completions", {"messages": messages})["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "="}]
        turns += 1
    send("chat/completions", {"messages": messages[:1]})  # A conversation of its own.
    rewards = {"parity": len(message["content"]) % 2}
    send("outcome", {"rewards": rewards, "metrics": {"asked": turns}})


main()
