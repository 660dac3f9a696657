"""Recorded runs made of random but fixed rankings over a small corpus, for tests of the report, comparison and gate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from denominator.evaluation import evaluate, summarize
from denominator.fingerprint import FIELDS, dataset_hash, fingerprint
from denominator.spans import CorpusIndex
from denominator.types import Document, Evidence, Hit, Plan, Question, RecordedRun, Result, Run

WORDS = (
    *("amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbour", "inlet"),
    *("juniper", "kelp", "lagoon", "marsh", "north", "oak", "pine", "quartz"),
)
PLAN = Plan(ks=(1, 3, 5, 10), budget=60, pool=20, resamples=499, baseline="bm25 · fixed · none", eligibility="lenient")


def corpus(documents: int = 12, sentences: int = 12) -> tuple[Document, ...]:
    rng = np.random.default_rng(5)
    texts = []
    for _ in range(documents):
        lines = [" ".join(rng.choice(WORDS, 8)).capitalize() + "." for _ in range(sentences)]
        texts.append(" ".join(lines))
    return tuple(Document(f"d{i:02d}", text, f"Document {i}") for i, text in enumerate(texts))


def questions(documents: Sequence[Document], n: int = 60) -> tuple[Question, ...]:
    rng = np.random.default_rng(6)
    made = []
    for i in range(n):
        document = documents[int(rng.integers(len(documents)))]
        starts = [0, *[j + 2 for j, c in enumerate(document.text) if c == "."][:-1]]
        start = starts[int(rng.integers(len(starts)))]
        end = document.text.index(".", start) + 1
        tags = {"category": ["a", "b", "c"][i % 3], "difficulty": "easy" if i % 2 else "hard"}
        gold = ((Evidence(document.id, start, end),),)
        made.append(
            Question(f"q{i:03d}", f"What of {document.text[start : start + 20]}?", "answerable", gold, tags=tags)
        )
    made += [Question(f"u{i:03d}", f"Unknown {i}?", "unanswerable", tags={"category": "a"}) for i in range(25)]
    made += [Question("p000", "Partly?", "partial", ((Evidence(documents[0].id, 0, 10),),)), Question("n000", "Open?")]
    return tuple(made)


def recorded(
    name: str,
    params: dict[str, str],
    *,
    skill: float,
    seed: int,
    width: int = 60,
    plan: Plan = PLAN,
    asked: Sequence[Question] | None = None,
    documents: Sequence[Document] | None = None,
    failed: Sequence[str] = (),
) -> RecordedRun:
    """A run whose retriever puts the gold passage high with probability `skill`; everything else is noise."""
    documents = documents or corpus()
    asked = asked or questions(documents)
    index = CorpusIndex.build(documents)
    rng = np.random.default_rng(seed)
    results = {}
    for question in asked:
        if question.id in failed:
            results[question.id] = Result(error="the service was away")
            continue
        hits: dict[str, Hit] = {}
        for group in question.gold:
            target = group[0]
            if rng.random() < skill and target.start is not None:
                start = target.start // width * width
                text = next(d for d in documents if d.id == target.doc).text
                end = min(start + width, len(text))
                key = f"{target.doc}#{start:09d}-{end:09d}"
                hits[key] = Hit(key, target.doc, round(0.7 + 0.3 * float(rng.random()), 6), start, end)
        for _ in range(15):
            document = documents[int(rng.integers(len(documents)))]
            start = int(rng.integers(len(document.text) // width)) * width
            end = min(start + width, len(document.text))
            key = f"{document.id}#{start:09d}-{end:09d}"
            hits.setdefault(key, Hit(key, document.id, round(0.75 * float(rng.random()), 6), start, end))
        results[question.id] = Result(tuple(hits.values()), depth=20, exhausted=True)
    outcomes = evaluate(asked, Run.from_results(results), plan, index=index, corpus_ids={d.id for d in documents})
    summary = summarize(outcomes, plan)
    fields = {
        "dataset_hash": dataset_hash(asked),
        "corpus_hash": "c",
        "metric": summary.headline,
        "metric_version": "1",
        "level": summary.metrics[summary.headline].level,
        "k": summary.metrics[summary.headline].k,
        "aggregation": plan.aggregation,
        "eligibility": plan.eligibility,
        "ties": plan.ties,
        "tokenizer": "regex-v1",
    }
    prints = {}
    for metric, estimate in summary.metrics.items():
        one = fields | {"metric": metric, "level": estimate.level, "k": estimate.k}
        prints[metric] = one | {"fingerprint": fingerprint(one)}
    assert set(FIELDS) <= set(fields)
    return RecordedRun(
        run_id=f"{seed:08d}",
        name=name,
        cell_key=f"key-{name}",
        sweep_id="s1",
        params=params,
        tags={"headline_metric": summary.headline, "recorded": "true"},
        metrics={},
        plan=plan,
        outcomes=outcomes,
        facts={
            "latency_ms_median": 1.0 + seed % 5,
            "index_bytes": 1e5 * (1 + seed % 3),
            "context_tokens": float(plan.budget),
            "split_evidence": 0.4 if width < 50 else 0.2,
            "coverage_ceiling": 1.0,
        },
        fingerprints=prints,
        ledger=summary.ledger,
    )


def grid() -> list[RecordedRun]:
    """Three first stages × two chunkers × two rerankers: hybrid is really better, the rerankers do nothing."""
    documents = corpus()
    asked = questions(documents)
    skill = {"bm25": 0.6, "static": 0.45, "hybrid": 0.85}
    runs = []
    for i, (embedder, p) in enumerate(skill.items()):
        for j, (chunker, width) in enumerate({"fixed": 60, "small": 40}.items()):
            for k, reranker in enumerate(("none", "mix")):
                params = {"chunker": chunker, "embedder": embedder, "reranker": reranker}
                runs.append(
                    recorded(
                        f"{embedder} · {chunker} · {reranker}",
                        params,
                        skill=p,
                        seed=100 * i + 10 * j + k + 1,
                        width=width,
                        asked=asked,
                        documents=documents,
                    )
                )
    return runs
