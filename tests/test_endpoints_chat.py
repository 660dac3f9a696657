from __future__ import annotations

import json
from dataclasses import replace

import pytest

from denominator import masking
from denominator.abstention import decide
from denominator.cache import Cache
from denominator.embedders import BM25
from denominator.endpoints.chat import Chat, Judge, last_object
from denominator.endpoints.client import EndpointError
from denominator.errors import ConfigError
from denominator.types import Answer, Plan, Question
from tests.endpoint_parts import QUICK, TEXTS, bench_of
from tests.http_server import Reply, chat, chat_reply, serving

ASKED = ("Where is the filter of the pump?", "When is an order refunded?", "Who founded the zebra?")
PLAN = Plan(budget=40)
GOOD = {"answerable": True, "answer": "It is in [1]."}


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    masking.forget()


@pytest.fixture
def server():
    with serving(chat) as running:
        yield running


def part_of(server, kind=Chat, **settings):
    return kind(url=server.url + "/v1", model="m", **{**QUICK, **settings})


def written(part, *, plan=PLAN, cache=None, asked=ASKED, errors=None, **options):
    bench = bench_of(questions=asked, cache=cache, **options)
    ranked = bench.ranked(BM25(stopwords=False))[0]
    if errors:
        ranked = replace(ranked, errors=errors)
    questions = [Question(f"q{i}", text) for i, text in enumerate(asked)]
    return part.generate(bench, ranked, questions, plan)


def says(content, **more):
    return lambda request: chat_reply(content, **more)


def test_success(server):
    done = written(part_of(server, api_key="k-s3cret"))
    assert done.answers == {
        "q0": Answer(text="It is in [1].", structured=True),
        "q1": Answer(text="It is in [1].", structured=True),
        "q2": Answer(text="The passages do not say.", structured=False),
    }
    assert done.facts == {"answerer_tokens_in": 120.0, "answerer_tokens_out": 21.0, "answerer_failed": 0.0}
    assert done.notes == ()
    body = next(b for b in server.bodies() if b["messages"][-1]["content"].endswith(ASKED[0]))
    assert {k: body[k] for k in ("model", "temperature", "seed", "max_tokens")} == {
        "model": "m",
        "temperature": 0.0,
        "seed": 0,
        "max_tokens": 512,
    }
    schema = body["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["properties"] == {"answerable": {"type": "boolean"}, "answer": {"type": "string"}}
    assert server.requests[0].headers["Authorization"] == "Bearer k-s3cret"


def test_the_prompt_holds_the_best_chunks_within_the_budget(server):
    written(part_of(server), asked=ASKED[:1], plan=Plan(budget=15), titles={"filters": "Filters"})
    content = server.bodies()[0]["messages"][1]["content"]
    # 11 tokens of the first chunk, 4 of the second (the last one cut).
    assert content == (
        "[1] Filters\nClean the filter of the pump when the pressure falls.\n\n"
        "[2]\nA late order is\n\nQuestion: Where is the filter of the pump?"
    )


@pytest.mark.parametrize(
    ("settings", "plan", "numbers"),
    [
        ({"k": 1}, PLAN, 1),
        ({"k": 2, "budget": 11}, PLAN, 1),
        ({"budget": 12}, PLAN, 2),
        ({"budget": 12}, Plan(budget=40, budget_cut="whole"), 1),
        ({"k": 3}, Plan(budget=1), 3),
    ],
)
def test_k_and_budget(server, settings, plan, numbers):
    written(part_of(server, **settings), asked=ASKED[:1], plan=plan)
    content = server.bodies()[0]["messages"][1]["content"]
    assert content.count("\n\n") == numbers
    assert f"[{numbers}]" in content


def test_a_prompt_of_ones_own(server):
    part = part_of(
        server,
        system="",
        prompt="{{ lang }}|{{ chunks[0].id }}|{{ context }}|{{ history | length }}|{{ question }}",
        k=1,
        temperature=None,
        seed=None,
        max_tokens=None,
        extra={"max_completion_tokens": 99},
    )
    written(part, asked=("{{ chunks }} filter",))
    body = server.bodies()[0]
    assert body["messages"] == [
        {
            "role": "user",
            "content": f"en|filters#000000000-000000053|{TEXTS['filters']}|0|{{{{ chunks }}}} filter",
        }
    ]
    assert set(body) == {"model", "messages", "max_completion_tokens", "response_format"}


@pytest.mark.parametrize(
    ("field", "template", "message"),
    [
        ("prompt", "{{ question", "prompt: line 1: unexpected end"),
        ("prompt", "{{ passages }}", "passages is not known there \\(there are: question, chunks, context"),
        ("system", "{% for %}", "system: line 1"),
        ("prompt", "{{ question.__class__.__mro__ }}", None),
        ("prompt", "{{ question.nothing }}", None),
    ],
)
def test_templates_are_checked_and_sandboxed(server, field, template, message):
    if message:
        with pytest.raises(ConfigError, match=message):
            part_of(server, **{field: template})
    else:
        with pytest.raises(ConfigError, match="the prompt cannot be filled for question 'q0'"):
            written(part_of(server, **{field: template}), asked=ASKED[:1])
    assert server.requests == []


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_server_without_structured_output_is_asked_without_it(server, status):
    server.answer = lambda r: Reply(status, {"error": "response_format"}) if "response_format" in r.body else chat(r)
    done = written(part_of(server, concurrency=1))
    assert [a.structured for a in done.answers.values()] == [True, True, False]
    assert ["response_format" in body for body in server.bodies()] == [True, False, False, False]

    done = written(part_of(server, structured="json_schema"))
    assert all(f"status {status}" in a.error for a in done.answers.values())


def test_the_other_forms(server):
    written(part_of(server, structured="json_object"), asked=ASKED[:1])
    written(part_of(server, structured="text"), asked=ASKED[:1])
    assert server.bodies()[0]["response_format"] == {"type": "json_object"}
    assert "response_format" not in server.bodies()[1]


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (json.dumps(GOOD), Answer(text="It is in [1].", structured=True)),
        (f"Sure!\n```json\n{json.dumps(GOOD)}\n```", Answer(text="It is in [1].", structured=True)),
        ('<think>{"answerable": true}?</think>{"answerable": false}', Answer(text="", structured=False)),
        ("I cannot answer this from the documents.", Answer(text="I cannot answer this from the documents.")),
        ('{"answerable": "no", "answer": "x"}', Answer(text='{"answerable": "no", "answer": "x"}')),
        ('{"answerable": true, "answer": "cut', Answer(text='{"answerable": true, "answer": "cut')),
        ("", Answer(text="")),
        (None, Answer(text="")),
        ([{"type": "text", "text": json.dumps(GOOD)}], Answer(text="It is in [1].", structured=True)),
        ('{"answerable": true, "answer": "\\ud83d"}', Answer(text="?", structured=True)),
    ],
)
def test_what_a_reply_says(server, content, answer):
    server.answer = says(content)
    assert written(part_of(server), asked=ASKED[:1]).answers["q0"] in (
        answer,
        replace(answer, text=(answer.text or "").replace("?", "\ud83d")),
    )


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (chat_reply('{"answerable": tr', finish="length"), "the reply was cut at max_tokens=512"),
        (chat_reply("", finish="content_filter"), "content filter withheld"),
        ({"choices": []}, "no choices[0].message"),
        ({"choices": [{"text": "x"}]}, "no choices[0].message"),
        ([], "no choices[0].message"),
        (chat_reply(5), "content is int, expected a text"),
    ],
)
def test_a_reply_that_is_no_answer(server, reply, message):
    server.answer = lambda request: reply
    done = written(part_of(server), asked=ASKED[:1])
    answer = done.answers["q0"]
    assert answer.error.startswith("answerer chat: ")
    assert message in answer.error
    assert decide(answer).abstained is None
    assert decide(answer).rung == "error"
    assert done.notes == ("1 of 1 questions got no answer from m",)


@pytest.mark.parametrize(
    "fault",
    [Reply(429, {}, {"Retry-After": "0"}), Reply(500), Reply(body=b"{"), Reply(body=[1, 2], cut=2), Reply(delay=0.3)],
    ids=["429", "500", "malformed", "cut", "time-out"],
)
def test_a_passing_failure(server, fault):
    server.faults.append(fault)
    done = written(part_of(server, timeout=0.15))
    assert [a.structured for a in done.answers.values()] == [True, True, False]


@pytest.mark.parametrize(
    ("always", "message"),
    [
        (Reply(500, {"error": "busy"}), "status 500"),
        (Reply(401, {"error": "no"}), "status 401"),
        (Reply(429, {}, {"Retry-After": "900"}), "asks to wait 900 s"),
        (Reply(body=b"{"), "is not JSON"),
        (Reply(delay=0.08), "no answer within 0.02 s"),
    ],
    ids=["500", "401", "429", "malformed", "time-out"],
)
def test_a_lasting_failure_leaves_that_answer_undecided(server, always, message):
    server.answer = lambda r: always if r.body["messages"][-1]["content"].endswith(ASKED[1]) else chat(r)
    done = written(part_of(server, timeout=0.02 if always.delay else 5.0, retries=1))
    assert message in done.answers["q1"].error
    assert decide(done.answers["q1"]).abstained is None
    assert [done.answers[q].structured for q in ("q0", "q2")] == [True, False]
    assert done.facts["answerer_failed"] == 1


def test_questions_that_retrieval_failed_on_are_not_asked(server):
    done = written(part_of(server), asked=("  ", *ASKED[:2]), errors={2: "no connection"})
    assert done.answers["q0"].error == "not asked: the question has no text"
    assert done.answers["q2"].error == "not asked: no connection"
    assert len(server.requests) == 1


def test_costs(server):
    part = part_of(server, price_per_million_input=3.0, price_per_million_output=10.0)
    assert written(part).facts["answerer_cost"] == pytest.approx((120 * 3 + 21 * 10) / 1e6)
    server.answer = says("one, two", usage=None)
    done = written(part_of(server, system="", prompt="{{ question }}", version="2"), asked=("three four?",))
    assert (done.facts["answerer_tokens_in"], done.facts["answerer_tokens_out"]) == (3, 3)  # by regex-v1


def test_replies_are_kept_and_failures_are_not(server, tmp_path):
    server.answer = lambda r: Reply(500) if r.body["messages"][-1]["content"].endswith(ASKED[1]) else chat(r)
    part = part_of(server, api_key="k-s3cret", retries=0)
    written(part, cache=Cache(tmp_path))
    assert len(server.requests) == 3
    server.answer = chat
    done = written(part, cache=Cache(tmp_path))
    assert len(server.requests) == 4
    assert done.answers["q1"].structured is True
    again = written(replace(part, api_key="another", concurrency=1), cache=Cache(tmp_path))
    assert again == done
    assert len(server.requests) == 4
    for other in ({"temperature": 0.5}, {"seed": 1}, {"system": "x"}, {"k": 1}, {"version": "2"}, {"model": "n"}):
        before = len(server.requests)
        written(replace(part, **other), cache=Cache(tmp_path), asked=ASKED[:1])
        assert len(server.requests) == before + 1
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes()


# The judge


def judging(request):
    reply = request.body["messages"][-1]["content"].partition("Reply: ")[2]
    return chat_reply(json.dumps({"declines": "sorry" in reply.lower()}))


def both(request):
    return (
        judging(request) if "Reply: " in request.body["messages"][-1]["content"] else chat_reply("Sorry, pumps only.")
    )


def test_the_judge_fits_the_protocol(server):
    server.answer = judging
    judge = part_of(server, Judge)
    assert judge("Sorry, no idea.", question="q", lang="xx") is True
    assert judge("In 1815.", question=None, lang="en") is False
    assert decide(Answer(text="Sorry!"), "xx", judge).rung == "judge"
    body = server.bodies()[0]
    assert body["messages"][-1]["content"] == "Question: q\n\nReply: Sorry, no idea."
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["declines"]


def test_a_judge_that_fails_leaves_the_answer_undecided(server):
    server.always = Reply(500, {"error": "busy"})
    judge = part_of(server, Judge, retries=0)
    with pytest.raises(EndpointError, match=r"judge: POST .* status 500"):
        judge("Sorry", question="q", lang="en")
    decision = decide(Answer(text="Sorry"), "xx", judge)
    assert (decision.abstained, decision.rung) == (None, "judge")
    server.always = None
    server.answer = says("I would say so.")
    assert judge("Sorry", question="q", lang="en") is None


def test_the_judge_is_asked_about_what_no_other_rung_decides(server, tmp_path):
    server.answer = both
    part = part_of(server, judge=part_of(server, Judge, price_per_million_input=1.0), price_per_million_input=1.0)
    done = written(part, cache=Cache(tmp_path))
    asked = [b for b in server.bodies() if "Reply: " in b["messages"][-1]["content"]]
    assert len(asked) == 3
    assert done.facts["judge_asked"] == 3
    assert done.facts["judge_cost"] == pytest.approx(3 * 40 / 1e6)
    decision = decide(done.answers["q0"], "en", done.judge, question=ASKED[0])
    assert (decision.abstained, decision.rung) == (True, "judge")
    count = len(server.requests)
    written(part, cache=Cache(tmp_path))
    assert len(server.requests) == count

    server.answer = chat  # structured replies need no judge
    server.requests.clear()
    assert written(part, cache=Cache(None)).facts["judge_asked"] == 0
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"structured": "yaml"}, "structured must be auto, json_schema, json_object or text, found 'yaml'"),
        ({"temperature": -1}, "temperature must be a number at least 0"),
        ({"max_tokens": 0}, "max_tokens must be a whole number"),
        ({"k": 0}, "k must be a whole number of at least 1"),
        ({"extra": {"stream": True}}, "extra cannot set stream"),
        ({"judge": "gpt"}, "judge must be a denominator.endpoints.chat.Judge, found str"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        Chat(**{"url": "http://h", "model": "m", **settings})


@pytest.mark.parametrize("text", ["", "{", "{" * 3000, "[{}]", '{"answerable": 1}', '{"a": {"answerable": true'])
def test_no_object_is_none(text):
    assert last_object(text, "answerable") is None
