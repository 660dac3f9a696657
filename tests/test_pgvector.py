"""pgvector as the retriever, against a real PostgreSQL that the test starts; exact numpy search is the judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

from denominator import masking
from denominator.cache import Cache, describe
from denominator.chunkers import Fixed
from denominator.config import build
from denominator.embedders import Static
from denominator.errors import ConfigError, StageError
from denominator.retrievers.postgres import PgVector
from denominator.retrievers.static import static_model
from tests import postgres
from tests.endpoint_parts import QUESTIONS, TEXTS, bench_of, rankings

WORDS = ("pump", "valve", "filter", "pressure", "tank", "motor", "cable", "sensor", "paint", "refund", "late", "order")
CORPUS = {f"d{i:02d}": " ".join(np.random.default_rng(i).choice(WORDS, 5 + i % 9)) for i in range(60)}
ASKED = ("pump pressure sensor", "refund of a late order", "paint", "tank", "a late cable")


def vectors_of(texts):
    model = static_model()
    return model.vectors(model.bags(list(texts)), 64, "text").astype(np.float64)


def part(**options):
    return PgVector(**{"table": "chunks", "vector": Static(64), "exact": True, "backoff": 0.001, **options})


@pytest.fixture(scope="module")
def server():
    psycopg = pytest.importorskip("psycopg", reason="needs the extra pgvector")
    with postgres.running("vector") as running:
        with psycopg.connect(running.dsn) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION vector")
            cursor.execute("CREATE TABLE chunks (id text PRIMARY KEY, embedding vector(64), lang text)")
            cursor.execute(
                'CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."Chunks; --" '
                '(n int, "the ""vector" vector(64), doc text, a int, b int, said text)'
            )
            for i, (name, vector) in enumerate(zip(CORPUS, vectors_of(CORPUS.values()), strict=True)):
                cursor.execute(
                    "INSERT INTO chunks VALUES (%s, %s, %s)", (name, str(vector.tolist()), ["en", "de"][i % 2])
                )
            bench = bench_of(chunker=Fixed(3))
            units = bench.table.units
            sent = [bench.table.sent(i) for i in range(len(units))]
            for i, vector in enumerate(vectors_of(sent)):
                place = (units.docs[units.doc[i]], int(units.start[i]), int(units.end[i]))
                row = (i, str(vector.tolist()), *place, sent[i])
                cursor.execute('INSERT INTO "My Schema"."Chunks; --" VALUES (%s, %s, %s, %s, %s, %s)', row)
            cursor.execute("CREATE ROLE nobody_much LOGIN PASSWORD 'nobody-pass'")
        yield running
    masking.forget()


@pytest.fixture
def dsn(server):
    if not server.is_running:
        server.start()
    return server.dsn


@pytest.mark.service
@pytest.mark.parametrize("distance", ["cosine", "inner_product", "l2", "l1"])
def test_rankings_are_those_of_an_exact_search(dsn, distance):
    bench = bench_of(CORPUS, ASKED, depth=7)
    ranked, _ = bench.ranked(part(dsn=dsn, distance=distance, concurrency=3))
    assert not ranked.errors
    names, corpus = sorted(CORPUS), vectors_of(CORPUS[d] for d in sorted(CORPUS))
    for row, question in enumerate(vectors_of(ASKED)):
        scores = {
            "cosine": corpus @ question,
            "inner_product": corpus @ question,
            "l2": -np.linalg.norm(corpus - question, axis=1),
            "l1": -np.abs(corpus - question).sum(axis=1),
        }[distance]
        # float32 in the database: where two distances agree to six decimals, ids decide
        expected = sorted(zip(-np.round(scores, 6), names, strict=True))[:7]
        assert rankings(bench, ranked)[row] == [d for _, d in expected]
        at = slice(ranked.offsets[row], ranked.offsets[row + 1])
        np.testing.assert_allclose(ranked.scores[at], [-s for s, _ in expected], atol=2e-6)
    assert not ranked.exhausted.any()


@pytest.mark.service
def test_rows_without_a_distance_are_no_hits(dsn):
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO chunks VALUES ('empty', NULL), ('zero', %s)", (str([0] * 64),))
        try:
            ranked, _ = bench_of(CORPUS, ASKED[:1], depth=100).ranked(part(dsn=dsn))
        finally:
            connection.execute("DELETE FROM chunks WHERE id IN ('empty', 'zero')")
    assert len(ranked.unit) == len(CORPUS)
    assert ranked.exhausted.all()
    assert not ranked.errors


@pytest.mark.service
def test_only_rows_that_have_these_values(dsn):
    bench = bench_of(CORPUS, ASKED, depth=100)
    found = rankings(bench, bench.ranked(part(dsn=dsn, where={"lang": "de"}))[0])
    assert {d for row in found for d in row} == {d for i, d in enumerate(CORPUS) if i % 2}


@pytest.mark.service
@pytest.mark.parametrize("by", [{"start": "a", "end": "b"}, {"text": "said"}], ids=["place", "text"])
def test_chunks_by_their_place_or_text_with_names_that_need_quotes(dsn, by):
    bench = bench_of(chunker=Fixed(3), depth=5)
    names = {"table": "My Schema.Chunks; --", "id": "n", "embedding": 'the "vector', "document": "doc"}
    ranked, _ = bench.ranked(part(dsn=dsn, **names, **by))
    exact, _ = bench.ranked(Static(64))
    assert not ranked.errors
    assert ranked.unit.tolist() == exact.unit.tolist()
    np.testing.assert_allclose(ranked.scores, exact.scores, atol=2e-6)


@pytest.mark.service
def test_an_index_of_the_database_is_used_and_gives_as_many_rows_as_are_asked_for(dsn):
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE INDEX near ON chunks USING hnsw (embedding vector_cosine_ops)")
        try:
            bench = bench_of(CORPUS, ASKED, depth=50)
            settings = {"enable_seqscan": "off", "enable_sort": "off"}
            ranked, _ = bench.ranked(part(dsn=dsn, exact=False, settings=settings))
            assert np.diff(ranked.offsets).tolist() == [50] * len(ASKED)  # pgvector's own default would be 40
            few, _ = bench.ranked(part(dsn=dsn, exact=False, settings={**settings, "hnsw.ef_search": 10}))
            assert max(np.diff(few.offsets)) < 50
            assert few.facts == {"embedder_short_rankings": 5.0}
        finally:
            connection.execute("DROP INDEX near")


@pytest.mark.service
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "nowhere"}, '"nowhere" does not exist'),
        ({"embedding": "nothing"}, '"nothing" does not exist'),
        ({"document": "doc"}, '"doc" does not exist'),
        ({"embedding": "id"}, "operator does not exist"),
        ({"settings": {"no_such_setting": 1}}, "no_such_setting"),
    ],
    ids=str,
)
def test_a_wrong_name_fails_the_cell(dsn, options, says):
    with pytest.raises(StageError, match=says):
        bench_of(CORPUS, ASKED).ranked(part(dsn=dsn, **options))


@pytest.mark.service
def test_a_role_that_may_not_read_fails_the_cell(server, dsn):
    import psycopg

    other = dsn.replace(f"{server.user}:{server.password}", "nobody_much:nobody-pass")
    with psycopg.connect(dsn) as connection:
        connection.execute("REVOKE ALL ON chunks FROM nobody_much")
    with pytest.raises(StageError, match="permission denied"):
        bench_of(CORPUS, ASKED).ranked(part(dsn=other))


@pytest.mark.service
def test_the_session_only_reads(dsn):
    index = part(dsn=dsn).open(bench_of(CORPUS, ASKED))
    with pytest.raises(Exception, match="read-only transaction"), index._session() as cursor:
        cursor.execute("DELETE FROM chunks")


@pytest.mark.service
def test_other_failures_are_failed_questions(server, dsn):
    bench = bench_of(CORPUS, ASKED)
    ranked, _ = bench.ranked(part(dsn=dsn, vector=Static(256)))
    assert sorted(ranked.errors) == [0, 1, 2, 3, 4]
    assert ranked.errors[0] == "embedder pgvector: DatabaseError: different vector dimensions 64 and 256"
    wrong = dsn.replace(server.password, "wrong-passphrase")
    ranked, _ = bench.ranked(part(dsn=wrong))
    assert "password authentication failed" in ranked.errors[0]
    assert "wrong-passphrase" not in str(ranked.errors)
    run = ranked.run(["q"] * 5, bench.table.units)
    assert len(run.errors) == 1
    assert run.question_ids == ()


@pytest.mark.service
def test_a_server_that_went_away_and_came_back(server, dsn):
    bench = bench_of(CORPUS, ASKED)
    index = part(dsn=dsn, retries=1).open(bench)
    good = index.search(bench, bench.queries)
    assert not good.errors
    server.stop()
    down = index.search(bench, bench.queries)
    assert sorted(down.errors) == [0, 1, 2, 3, 4]
    assert "(2 attempts)" in down.errors[0]
    assert server.password not in str(down.errors)
    server.start()
    again = index.search(bench, bench.queries)  # the old connections are dead: a second attempt opens new ones
    assert again.unit.tolist() == good.unit.tolist()
    assert not again.errors


@pytest.mark.service
def test_a_query_that_takes_too_long_is_ended_by_the_database(dsn):
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE OR REPLACE VIEW slow AS SELECT id, embedding, pg_sleep(5)::text AS nap FROM chunks")
    ranked, _ = bench_of(CORPUS, ASKED[:2]).ranked(part(dsn=dsn, table="slow", text="nap", timeout=0.2))
    assert all("statement timeout" in why for why in ranked.errors.values())
    assert len(ranked.errors) == 2


@pytest.mark.service
def test_results_are_kept_under_a_version_alone(server, dsn, tmp_path):
    def of(version):
        bench = bench_of(CORPUS, ASKED, cache=Cache(tmp_path))
        return bench.ranked(part(dsn=dsn, version=version))[0]

    first = of("1")
    server.stop()
    assert of("1").unit.tolist() == first.unit.tolist()
    assert len(of("2").errors) == 5
    assert len(of(None).errors) == 5


@pytest.mark.service
def test_from_the_command_line_it_is_the_static_embedder_and_no_secret_is_written(server, dsn, tmp_path):
    import psycopg

    from denominator.readers.native import Demo

    documents = Demo().load().documents
    model = static_model()
    texts = [f"{d.title}\n{d.text}" if d.title else d.text for d in documents]
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE demo (id text, embedding vector(256))")
        for document, vector in zip(documents, model.vectors(model.bags(texts), 256, "text").tolist(), strict=True):
            cursor.execute("INSERT INTO demo VALUES (%s, %s)", (document.id, str(vector)))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "DENOMINATOR"))}
    environment |= {"DATABASE_URL": dsn, "MLFLOW_DISABLE_TELEMETRY": "true"}

    def call(*arguments):
        command = [sys.executable, "-m", "denominator", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def recall(*arguments):
        said = call("run", "chunker=none", "eligibility=lenient", *arguments, "-q")
        assert server.password not in said
        (cell,) = json.loads(call("runs", "--json"))["cells"]
        return cell["metrics"]["recall@5"]

    first, second = recall("embedder=pgvector", "embedder.table=demo"), recall("embedder=static")
    assert first == second
    assert first["value"] > 0.5
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or server.password.encode() not in path.read_bytes(), path


# ------------------------------------------------------------------ without a server


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": "a"}, "start and end"),
        ({"distance": "far"}, "distance must be one of cosine"),
        ({"table": "a..b"}, "table must be"),
        ({"vector": 7}, "vector must be a part that embeds questions, found int"),
        ({"dsn": "host=h password=hidden"}, "write a dsn with a password as postgresql://"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"timeout": 0}, "timeout must be a number greater than 0"),
        ({"calls_per_minute": float("nan")}, "calls_per_minute"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(options, says):
    with pytest.raises(ConfigError, match=says) as refused:
        part(**options)
    assert "hidden" not in str(refused.value)


def test_no_secret_in_a_key_or_a_repr():
    pytest.importorskip("psycopg", reason="needs the extra pgvector")
    one = part(dsn="postgresql://me:s3cret-word@host:5433/db")
    other = part(dsn="postgresql://you:an0ther-word@host:5433/db")
    assert describe(one) == describe(other)
    assert "s3cret" not in repr(one) + repr(describe(one))
    assert describe(one) != describe(part(dsn="postgresql://me:s3cret-word@host:5433/db2"))


def test_nobody_listens():
    pytest.importorskip("psycopg", reason="needs the extra pgvector")
    bench = bench_of(questions=QUESTIONS)
    ranked, _ = bench.ranked(part(dsn=f"postgresql://me:s3cret-word@127.0.0.1:{postgres.free_port()}/db"))
    assert len(ranked.errors) == len(QUESTIONS)
    assert all("onnection" in why and "s3cret" not in why for why in ranked.errors.values())
    assert len(TEXTS) == len(bench.table)


def test_the_yaml_builds():
    from denominator.composing import conf_dir

    text = (conf_dir() / "embedder" / "pgvector.yaml").read_text(encoding="utf-8")
    node = yaml.safe_load(text) | {"table": "chunks", "dsn": None}
    made = build(node, "embedder")
    assert made == PgVector(table="chunks", vector=Static(), timeout=30, retries=3, concurrency=4)
