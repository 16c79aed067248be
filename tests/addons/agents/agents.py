"""Agents that tests run: programs and functions that know nothing of this project."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks somewhere.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


def ask(messages, **options):
    import openai

    made = openai.OpenAI(max_retries=0)
    return (
        made.chat.completions.create(model="any", messages=messages, **options).choices[0].message
    )


def send(path, body):
    url = f"{os.environ['OPENAI_BASE_URL']}/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as found:
        return json.load(found)


def ask_plainly(*messages):
    """Asks without a client, which takes seconds to import; returns text and reason of the end."""
    (choice,) = send("chat/completions", {"messages": messages})["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def loop(row, turns=3):
    """An ordinary agent: asks, and asks back about each reply."""
    messages = [user(row["prompt"])]
    for _ in range(turns):
        message = ask(messages)
        messages += [message.model_dump(exclude_none=True), user("on")]


def rewarded(row):
    text, _ = ask_plainly(user(row["prompt"]))
    send("outcome", {"rewards": {"length": len(text)}, "metrics": {"words": 2}})


def untiring(row):
    """Asks on, whatever it gets; notes the reasons of the ends of replies."""
    messages = [user(row["prompt"])]
    with open(row["notes"], "a") as notes:
        while True:
            text, finish = ask_plainly(*messages)
            print(finish, repr(text), file=notes, flush=True)
            if finish == "length" and not row.get("forever"):
                return
            messages += [said(text), user("on")]


def peaceful(row):
    """Ends when a reply is cut, and says how it was."""
    while ask_plainly(user(row["prompt"]))[1] != "length":
        pass
    send("outcome", {"rewards": {"patience": 0.5}})


def crashing(row):
    ask_plainly(user(row["prompt"]))
    print("the line that says why", file=sys.stderr)
    sys.exit(3)


def idle(row):
    child = subprocess.Popen(["sleep", "1000"])
    Path(row["notes"]).write_text(f"{os.getpid()} {child.pid}")
    ask_plainly(user(row["prompt"]))
    time.sleep(1000)


def leaving(row):
    """Ends, and leaves a process."""
    child = subprocess.Popen(["sleep", "1000"], stderr=subprocess.DEVNULL)
    Path(row["notes"]).write_text(str(child.pid))
    ask_plainly(user(row["prompt"]))


def silent(row):
    """Never asks."""


def dying(row):
    os.kill(os.getpid(), signal.SIGTERM)


def several(row):
    """Asks several things at once."""
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        texts = threads.map(lambda i: ask_plainly(user(f"{row['prompt']}{i}")), range(4))
        send("outcome", {"rewards": {"replies": len([*texts])}})


def branching(row):
    """Has a conversation beside its own, then goes on twice from the same reply."""
    text, _ = ask_plainly(user(row["prompt"]))
    ask_plainly(user("help."))
    for again in ("on", "or"):
        ask_plainly(user(row["prompt"]), said(text), user(again))


def tooling(row):
    """Calls tools until there is nothing to call."""
    messages = [user(row["prompt"])]
    while True:
        message = ask(messages, tools=[LOOK])
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        messages += [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": json.loads(call.function.arguments)["place"],
            }
            for call in message.tool_calls
        ]


def talking(row):
    """Asks as an agent of Anthropic does, with the client's own reading of the variables."""
    import anthropic

    client = anthropic.Anthropic(max_retries=0)
    messages, counts = [user(row["prompt"])], []
    asked = {"model": os.environ["ANTHROPIC_MODEL"], "messages": messages}
    for _ in range(3):
        counts.append(client.messages.count_tokens(**asked).input_tokens)
        reply = client.messages.create(max_tokens=64, thinking={"type": "adaptive"}, **asked)
        is_counted = counts[-1] == reply.usage.input_tokens or len(counts) > 1
        messages += [{"role": "assistant", "content": reply.content}, user("on")]
    thoughts = [one["content"][0].type == "thinking" for one in messages[1::2]]
    metrics = {"counted": float(is_counted), "grew": float(counts == sorted(set(counts)))}
    send("outcome", {"rewards": {"thoughts": sum(thoughts)}, "metrics": metrics})


def calling(row):
    """Streams replies as an agent of Anthropic does, and calls tools until it gets no call."""
    import anthropic

    client = anthropic.Anthropic(max_retries=0)
    function = LOOK["function"]
    tool = {"name": "look", "input_schema": function["parameters"]}
    messages = [user(row["prompt"])]
    while True:
        asked = {"model": "claude", "max_tokens": 64, "messages": messages, "tools": [tool]}
        with client.messages.stream(**asked) as stream:
            reply = stream.get_final_message()
        if reply.stop_reason != "tool_use":
            return
        answers = [
            {"type": "tool_result", "tool_use_id": one.id, "content": one.input["place"]}
            for one in reply.content
            if one.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": reply.content}, user(answers)]


def claude_code(row):
    """Lets Claude Code work in an empty directory, and posts what it said at the end."""
    home = Path(row["home"])
    more = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    words = ["claude", "-p", row["prompt"], "--system-prompt", "Be short.", "--tools", "Bash"]
    words += ["--allowedTools", "Bash(echo:*)", "--output-format", "json"]
    environment = {**os.environ, "HOME": str(home), **more}
    ended = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True)
    found = json.loads(ended.stdout)
    rewards = {"done": float(found["subtype"] == "success")}
    send("outcome", {"rewards": rewards, "metrics": {"turns": found["num_turns"]}})
    (home / "said.txt").write_text(found["result"])


def bad(row):
    """Sends what a chat template refuses, reads the error, and goes on."""
    import openai

    try:
        ask([user(row["prompt"])], tools=[LOOK])
    except openai.BadRequestError as error:
        ask([user("fault" if "chat template" in str(error) else "what?")])


def play(row, settings):
    """Is called, and returns a reward."""
    import openai

    made = openai.OpenAI(base_url=settings.base_url, api_key=settings.api_key, max_retries=0)
    reply = made.chat.completions.create(model=settings.model, messages=[user(row["prompt"])])
    return len(reply.choices[0].message.content)


def stream(row, settings):
    """Reads a reply as it comes; notes when its chunks came, and the text of all of them."""
    import openai

    made = openai.OpenAI(base_url=settings.base_url, api_key=settings.api_key, max_retries=0)
    messages = [user(row["prompt"])]
    for _ in range(2):
        chat = {"model": "x", "messages": messages, "stream": True}
        choices = [chunk.choices[0] for chunk in made.chat.completions.create(**chat)]
        text = "".join(choice.delta.content or "" for choice in choices)
        ids = [getattr(choice, "token_ids", []) for choice in choices]
        messages += [said(text), user("on")]
        with open(row["notes"], "a") as notes:
            print(json.dumps([text, ids]), file=notes)
    return 1.0


async def play_async(row, settings):
    """Finds the endpoint in the environment variables, and returns rewards by name."""
    import openai

    made = openai.AsyncOpenAI(max_retries=0)
    reply = await made.chat.completions.create(model="x", messages=[user(row["prompt"])])
    return {"seed": float(settings.seed), "length": float(len(reply.choices[0].message.content))}


def think(row, settings):
    """Asks by chat, drops the reasoning, and goes on by responses, which it names or sends."""
    import openai

    made = openai.OpenAI(base_url=settings.base_url, api_key=settings.api_key, max_retries=0)
    messages = [user(row["prompt"])]
    message = made.chat.completions.create(model="x", messages=messages).choices[0].message
    asked = [*messages, said(message.content), user("on")]
    first = made.responses.create(model="x", input=asked)
    second = made.responses.create(model="x", input="more", previous_response_id=first.id)
    asked += [*first.output, user("more"), *second.output, user("end")]
    made.responses.create(model="x", input=asked)
    return {"answers": float(message.content == first.output_text == second.output_text == "yes")}


def fail(row, settings):
    raise LookupError("no way")


if __name__ == "__main__":
    read = json.load(sys.stdin)
    assert read == json.loads(Path(os.environ["RL_SYNC_ROW"]).read_text())
    globals()[sys.argv[1]](read)
