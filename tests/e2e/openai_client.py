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
        seeds(client, model)
        refusals(client, model)
    asyncio.run(several_at_once(url, model, answer))
    print(f"openai {openai.__version__} with {model}: {answer}")
    print("all held")


if __name__ == "__main__":
    main(*sys.argv[1:])
