"""Agents as people write them: with the clients of OpenAI and Anthropic, and the Agents SDK."""

import asyncio


async def fan_out(row, settings):
    """Asks several helpers at once, picks one of two drafts, and goes on from it."""

    import openai

    client = openai.AsyncOpenAI(base_url=settings.base_url, api_key=settings.api_key)

    async def ask(*messages, **options):
        chat = client.chat.completions
        return await chat.create(model=settings.model, messages=list(messages), **options)

    question = {"role": "user", "content": row["prompt"]}
    helpers, drafts = await asyncio.gather(
        asyncio.gather(*[ask({"role": "user", "content": f"{i}="}) for i in range(3)]),
        ask(question, n=2),
    )
    texts = [helper.choices[0].message.content for helper in helpers]
    best = max(drafts.choices, key=lambda choice: len(choice.message.content)).message
    content = ""
    stream = await ask(
        question, best.model_dump(exclude_none=True), {"role": "user", "content": "="}, stream=True
    )
    async for chunk in stream:
        content += chunk.choices[0].delta.content or ""
    return {"length": float(len(content) + sum(map(len, texts)) % 2)}


def with_anthropic(row, settings):
    """Holds a conversation of two turns, the second as a stream, with the client of Anthropic."""

    import anthropic

    client = anthropic.Anthropic()  # The variables have the episode's address and key.
    asked = {"model": settings.model, "max_tokens": 64}
    messages = [{"role": "user", "content": row["prompt"]}]
    first = client.messages.create(messages=messages, **asked)
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "="},
    ]
    with client.messages.stream(messages=messages, **asked) as stream:
        text = stream.get_final_text()
    return float(len(text) % 2)


async def sdk(row, settings):
    """Holds a conversation of two turns with the Agents SDK."""

    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=settings.base_url, api_key=settings.api_key)
    model = agents.OpenAIChatCompletionsModel(model=settings.model, openai_client=client)
    agent = agents.Agent(name="sums", model=model)
    first = await agents.Runner.run(agent, row["prompt"])
    again = [*first.to_input_list(), {"role": "user", "content": "="}]
    second = await agents.Runner.run(agent, again)
    return float(len(second.final_output) % 2)


async def sdk_with_responses(row, settings):
    """Holds a conversation of two turns with the Agents SDK as it is, by the Responses API."""

    import agents
    import openai

    client = openai.AsyncOpenAI(base_url=settings.base_url, api_key=settings.api_key)
    provider = agents.OpenAIProvider(openai_client=client)
    config = agents.RunConfig(model_provider=provider, tracing_disabled=True)
    agent = agents.Agent(name="sums")
    try:
        first = await agents.Runner.run(agent, row["prompt"], run_config=config)
        again = [*first.to_input_list(), {"role": "user", "content": "="}]
        second = await agents.Runner.run(agent, again, run_config=config)
    except agents.ModelBehaviorError:  # A reply reached its limit.
        return {"ended": 0.0}
    return {"ended": 1.0 + len(second.final_output) % 2}
