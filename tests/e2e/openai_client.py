"""Talks to a running daemon with the official OpenAI client.

    python openai_client.py http://127.0.0.1:8000

The daemon serves the demo checkpoint. Every check that fails raises; the last line of a run in which
all of them held is "all held".
"""

import asyncio
import sys

import openai

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def chat_in_both_modes(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION)
    choice = whole.choices[0]
    assert "Paris" in choice.message.content, whole
    assert choice.message.role == "assistant" and choice.finish_reason == "stop", whole
    assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-"), whole
    usage = whole.usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage

    chunks = list(client.chat.completions.create(model=model, messages=QUESTION, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content, (text, choice.message.content)
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert [c.choices[0].finish_reason for c in chunks[-2:]] == [None, "stop"], chunks[-2:]
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for usage"

    chunks = list(
        client.chat.completions.create(
            model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == [] and chunks[-1].usage == usage, chunks[-1]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    return choice.message.content


def the_clients_stream_helper(client, model, expected):
    with client.chat.completions.stream(model=model, messages=QUESTION) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == expected, final


def a_conversation(client, model, answer):
    messages = [
        {"role": "developer", "content": "Be brief."},
        *QUESTION,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of Spain?"}]},
    ]
    reply = client.chat.completions.create(
        model=model, messages=messages, max_completion_tokens=32, user="someone"
    )
    assert reply.choices[0].message.content, reply
    assert reply.usage.completion_tokens <= 32, reply


def text_in_both_modes(client, model):
    arguments = dict(model=model, prompt="The capital of Spain is", max_tokens=12, temperature=0)
    whole = client.completions.create(**arguments)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-"), whole
    chunks = list(client.completions.create(**arguments, stream=True))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == whole.choices[0].text, (text, whole)
    assert "Madrid" in text, text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason

    stopped = client.completions.create(**arguments, stop=["drid"])
    expected = whole.choices[0].text.split("drid")[0]
    assert stopped.choices[0].text == expected, (stopped, whole)
    assert stopped.choices[0].finish_reason == "stop", stopped


def several_choices(client, model):
    arguments = dict(model=model, messages=QUESTION, n=3, temperature=1, seed=5, max_tokens=8)
    whole = client.chat.completions.create(**arguments)
    assert [choice.index for choice in whole.choices] == [0, 1, 2], whole
    chunks = list(
        client.chat.completions.create(
            **arguments, stream=True, stream_options={"include_usage": True}
        )
    )
    texts, reasons = {}, {}
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        reasons[choice.index] = choice.finish_reason
    for choice in whole.choices:
        assert texts[choice.index] == choice.message.content, (texts, whole)
        assert reasons[choice.index] == choice.finish_reason, (reasons, whole)
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage, chunks[-1]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    one = client.chat.completions.create(**arguments | dict(n=1))
    assert one.choices[0].message.content == whole.choices[0].message.content
    assert one.usage.prompt_tokens == whole.usage.prompt_tokens, "a prompt counts once"


def several_prompts(client, model):
    prompts = ["The capital of Spain is", "The capital of France is"]
    arguments = dict(model=model, max_tokens=6, temperature=0, n=2)
    whole = client.completions.create(prompt=prompts, **arguments)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3], whole
    alone = [client.completions.create(prompt=prompt, **arguments) for prompt in prompts]
    texts = [choice.text for answer in alone for choice in answer.choices]
    assert [choice.text for choice in whole.choices] == texts, (whole, texts)
    for count in ["prompt_tokens", "completion_tokens"]:
        total = sum(getattr(answer.usage, count) for answer in alone)
        assert getattr(whole.usage, count) == total, (count, whole.usage)


def several_prompts_streamed(client, model):
    prompts = ["The capital of Spain is", "The capital of France is"]
    arguments = dict(model=model, prompt=prompts, max_tokens=8, n=2, seed=3, echo=True, logprobs=2)
    whole = client.completions.create(**arguments)
    chunks = list(client.completions.create(**arguments, stream=True))
    texts, scores = [""] * 4, [[] for _ in range(4)]
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.logprobs:
            scores[choice.index] += choice.logprobs.token_logprobs
    for choice in whole.choices:
        assert texts[choice.index] == choice.text, (texts, whole)
        assert choice.text.startswith(prompts[choice.index // 2]), choice
        assert scores[choice.index] == choice.logprobs.token_logprobs, (scores, choice)


def usage_in_streams(client, model):
    def usages(**options):
        chunks = client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=4, n=2, stream=True, **options
        )
        return [chunk.usage for chunk in chunks if chunk.usage is not None]

    assert usages() == usages(stream_options={}) == []
    assert usages(stream_options={"include_usage": False}) == []
    (usage,) = usages(stream_options={"include_usage": True})
    assert usage.completion_tokens == 8, usage
    assert usage.total_tokens == usage.prompt_tokens + 8, usage


def steering(client, model):
    def says(**arguments):
        reply = client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=8, **arguments
        )
        return reply.choices[0]

    content = says().message.content
    # What begins the answer is forbidden, and something else begins it.
    ids = client.post("../tokenize", body={"prompt": content}, cast_to=object)["tokens"]
    assert says(logit_bias={str(ids[0]): -100}).message.content != content
    stopped = says(extra_body={"stop_token_ids": [ids[1]]})
    assert content.startswith(stopped.message.content) and stopped.finish_reason == "stop", stopped
    assert says(extra_body={"top_k": 1, "min_p": 0.1}).message.content == content


def what_is_not_there(client, model):
    """An answer in OpenAI's form also where there is nothing, so that the client can tell it."""
    for call in [
        lambda: client.embeddings.create(model=model, input="x"),
        lambda: client.responses.create(model=model, input="x"),
        lambda: client.moderations.create(input="x"),
    ]:
        try:
            call()
        except openai.NotFoundError as error:
            assert error.code == "unknown_url" and error.body["message"], error.body
        else:
            raise AssertionError("answered")


def hanging_up(client, model):
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()


def log_probabilities(client, model):
    arguments = dict(model=model, messages=QUESTION, temperature=0, max_tokens=12, logprobs=True)
    choice = client.chat.completions.create(**arguments, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    assert bytes(b for token in content for b in token.bytes).decode() == choice.message.content
    for token in content:
        assert len(token.top_logprobs) == 3, token
        likeliest = token.top_logprobs[0]
        assert (likeliest.token, likeliest.logprob) == (token.token, token.logprob), token
        assert token.logprob <= 0, token
    bare = client.chat.completions.create(**arguments).choices[0].logprobs.content
    assert [token.top_logprobs for token in bare] == [[]] * len(content), bare
    for token, ranked in zip(bare, content, strict=True):
        # Ranks' sums are added in another order where alternatives are ranked.
        assert abs(token.logprob - ranked.logprob) < 1e-9, (token, ranked)

    chunks = client.chat.completions.create(**arguments, top_logprobs=3, stream=True)
    streamed = [
        token
        for chunk in chunks
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert streamed == content, (streamed, content)

    prompt = "The capital of Spain is"
    echoed = client.completions.create(
        model=model, prompt=prompt, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    choice, count = echoed.choices[0], echoed.usage.prompt_tokens
    assert choice.text.startswith(prompt), echoed
    scores = choice.logprobs
    assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None, scores
    assert all(score <= 0 for score in scores.token_logprobs[1:]), scores
    assert "".join(scores.tokens) == choice.text, scores
    for token, offset in zip(scores.tokens, scores.text_offset):
        assert choice.text[offset:].startswith(token), (token, offset)
    alone = client.completions.create(
        model=model, prompt=prompt, echo=True, logprobs=1, max_tokens=0
    )
    assert alone.choices[0].text == prompt and alone.usage.completion_tokens == 0, alone
    assert alone.choices[0].logprobs.token_logprobs == scores.token_logprobs[:count]


def names(client, model):
    headers = {"X-Request-Id": "mine-7"}
    arguments = dict(model=model, messages=QUESTION, max_tokens=1)
    named = client.chat.completions.with_raw_response.create(**arguments, extra_headers=headers)
    assert named.headers["x-request-id"] == "mine-7", named.headers
    unnamed = client.chat.completions.with_raw_response.create(**arguments)
    assert unnamed.headers["x-request-id"] == unnamed.parse().id, unnamed.headers


def seeds(client, model):
    def sample(seed):
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a short story about a dragon named Luna."}],
            temperature=2,
            seed=seed,
            max_tokens=40,
        )
        return reply.choices[0].message.content

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(4)}) > 1, "seeds make no difference"


def models(client, model):
    listed = client.models.list().data
    assert [m.id for m in listed] == [model], listed
    assert client.models.retrieve(model).id == model


def refusals(client, model):
    def refused(kind, param, **arguments):
        request = dict(model=model, messages=QUESTION) | arguments
        try:
            client.chat.completions.create(**request)
        except kind as error:
            assert error.param == param, (error.param, param, error)
            assert error.body["message"], error.body
        else:
            raise AssertionError(f"accepted: {arguments}")

    refused(openai.NotFoundError, "model", model="gpt-9")
    refused(openai.BadRequestError, "temperature", temperature=3)
    refused(openai.BadRequestError, "n", n=17)
    refused(openai.BadRequestError, "n", n=0, stream=True)
    refused(openai.BadRequestError, "top_logprobs", top_logprobs=2)
    refused(openai.BadRequestError, "logit_bias", logit_bias={"100000000": 1})
    refused(openai.BadRequestError, "X-Request-Id", extra_headers={"X-Request-Id": "a b"})
    refused(openai.BadRequestError, "messages", messages=[])
    refused(openai.BadRequestError, "max_tokens", max_tokens=10**6)
    refused(openai.BadRequestError, "max_tokenz", extra_body={"max_tokenz": 5})


async def several_at_once(url, model, expected):
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        replies = await asyncio.gather(
            *(client.chat.completions.create(model=model, messages=QUESTION) for _ in range(4))
        )
    assert all(reply.choices[0].message.content == expected for reply in replies), replies
    assert len({reply.id for reply in replies}) == 4


def main(server):
    url = f"{server}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        models(client, model)
        answer = chat_in_both_modes(client, model)
        the_clients_stream_helper(client, model, answer)
        a_conversation(client, model, answer)
        text_in_both_modes(client, model)
        several_choices(client, model)
        several_prompts(client, model)
        several_prompts_streamed(client, model)
        usage_in_streams(client, model)
        steering(client, model)
        what_is_not_there(client, model)
        hanging_up(client, model)
        log_probabilities(client, model)
        names(client, model)
        seeds(client, model)
        refusals(client, model)
    asyncio.run(several_at_once(url, model, answer))
    print(f"openai {openai.__version__} with {model}: {answer}")
    print("all held")


if __name__ == "__main__":
    main(*sys.argv[1:])
