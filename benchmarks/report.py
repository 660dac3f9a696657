"""How long a report takes: 24 runs × 500 questions at B = 9,999. Prints statistics and whole report.

    python benchmarks/report.py            builds the runs, then measures in this process
    python benchmarks/report.py --record   also from an MLflow store, as `denominator report` does it

"Statistics" is everything between outcomes and decision: recomputing every run's summary, all intervals, tests, best
set, optimism, nested cross-validation. "Whole" adds figures, pages and files.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from denominator.evaluation import evaluate, summarize
from denominator.fingerprint import fingerprint
from denominator.report import build, write
from denominator.spans import CorpusIndex
from denominator.types import Document, Evidence, Hit, Plan, Question, RecordedRun, Result, Run

PLAN = Plan(ks=(1, 3, 5, 10), budget=200, resamples=9999, baseline="bm25 · c0 · none")
WORDS = ["amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbour", "inlet", "kelp", "marsh", "oak"]


def made(questions: int = 500, documents: int = 60) -> tuple[list[RecordedRun], dict[str, str]]:
    """4 first stages × 3 chunkers × 2 rerankers over one corpus; about a tenth of the questions is unanswerable."""
    rng = np.random.default_rng(3)
    corpus = tuple(Document(f"d{i:03d}", " ".join(rng.choice(WORDS, 1500)) + ".") for i in range(documents))
    asked = []
    for i in range(questions):
        tags = {"category": "abcde"[i % 5], "difficulty": ["easy", "hard"][i % 2]}
        if i % 10 == 9:
            asked.append(Question(f"q{i:04d}", f"Question {i}?", "unanswerable", tags=tags))
            continue
        document = corpus[int(rng.integers(documents))]
        start = int(rng.integers(len(document.text) - 200))
        gold = ((Evidence(document.id, start, start + 120),),)
        asked.append(
            Question(
                f"q{i:04d}", f"Question {i} about {document.text[start : start + 40]}?", "answerable", gold, tags=tags
            )
        )
    index = CorpusIndex.build(corpus)
    runs = []
    for e, (embedder, skill) in enumerate({"bm25": 0.6, "static": 0.5, "hybrid": 0.75, "onnx": 0.7}.items()):
        for c, width in enumerate((300, 500, 900)):
            for r, reranker in enumerate(("none", "mix")):
                seed = 100 * e + 10 * c + r
                draw = np.random.default_rng(seed)
                results = {}
                for question in asked:
                    hits: dict[str, Hit] = {}
                    for group in question.gold:
                        if draw.random() < skill and group[0].start is not None:
                            at = group[0].start // width * width
                            key = f"{group[0].doc}#{at:09d}"
                            hits[key] = Hit(key, group[0].doc, 0.6 + 0.4 * float(draw.random()), at, at + width)
                    for _ in range(20):
                        document = corpus[int(draw.integers(documents))]
                        at = int(draw.integers(len(document.text) // width)) * width
                        key = f"{document.id}#{at:09d}"
                        hits.setdefault(key, Hit(key, document.id, 0.8 * float(draw.random()), at, at + width))
                    kept = {k: replace(h, end=min(h.end or 0, len(index_text(corpus, h.doc)))) for k, h in hits.items()}
                    results[question.id] = Result(tuple(kept.values()), depth=100, exhausted=True)
                outcomes = evaluate(asked, Run.from_results(results), PLAN, index=index)
                summary = summarize(outcomes, PLAN)
                prints = {}
                for name in summary.metrics:
                    fields = {"dataset_hash": "d", "corpus_hash": "c", "metric": name, "metric_version": "1"}
                    prints[name] = fields | {"fingerprint": fingerprint(fields)}
                runs.append(
                    RecordedRun(
                        f"{seed:08d}",
                        f"{embedder} · c{c} · {reranker}",
                        f"{seed:064d}",
                        "s",
                        {"embedder": embedder, "chunker": f"c{c}", "reranker": reranker},
                        {"headline_metric": summary.headline},
                        {},
                        PLAN,
                        outcomes,
                        {"latency_ms_median": 1.0 + seed % 7, "index_bytes": 1e5 * (1 + c), "context_tokens": 200.0},
                        prints,
                        summary.ledger,
                    )
                )
    return runs, {d.id: d.text for d in corpus}


class Clock:
    """Seconds on the wall and of this process's processors; on a machine that is busy the second is the fairer one."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def say(self, what: str) -> None:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        print(f"{what:52} {wall:6.2f} s wall, {cpu:6.2f} s processor")


def index_text(corpus: tuple[Document, ...], doc: str) -> str:
    return corpus[int(doc[1:])].text


def from_the_record(runs: list[RecordedRun], texts: dict[str, str], folder: Path) -> None:
    from types import SimpleNamespace

    from denominator.deciding import make_report
    from denominator.pipeline import DatasetFacts
    from denominator.tracking import Store, default_uri

    store = Store.open(default_uri(folder / "out"), "benchmark", folder / "out")
    sweep = store.start_sweep("s", "sweep of 24 cells")
    for run in runs:
        result = SimpleNamespace(
            cell_key=run.cell_key,
            name=run.name,
            params=run.params,
            plan=run.plan,
            dataset=DatasetFacts("made", "d", "c", 60, 500),
            outcomes=run.outcomes,
            summary=summarize(run.outcomes, run.plan),
            timings=(),
            facts=run.facts,
            fingerprints=run.fingerprints,
            notes=(),
        )
        store.log_cell(result, "s")  # type: ignore[arg-type]
    store.log_sweep(sweep, note="", cells=[])
    clock = Clock()
    make_report(store, "s", texts=texts)
    clock.say("from the record: read, verified, written, attached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    import matplotlib.figure  # noqa: F401 - what is imported once is not the report's time
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401

    runs, texts = made()
    questions = len(runs[0].outcomes)
    print(f"{len(runs)} runs × {questions} questions, B = {runs[0].plan.resamples}, {runs[0].tags['headline_metric']}")
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.profile:
            profile.enable()
        clock = Clock()
        report = build(runs, texts=texts)
        clock.say("statistics (summaries, tests, decision)")
        written = write(report, folder / "report")
        clock.say(f"whole report ({written.html.stat().st_size / 1e6:.2f} MB of HTML)")
        profile.disable()
        if args.record:
            from_the_record(runs, texts, folder)
    if args.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
