"""Writes the same questions and rankings in the forms of both tools, from the recorded sweep `domains`.

Call: python experiments/rag_ci/example.py FOLDER [denominator-out]
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from denominator.tracking.reading import load_sweep

FOLDER, OUT = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "denominator-out"
DATA = Path(os.environ.get("DENOMINATOR_DATA", "../shared/data")) / "mtrag-un"
METRIC = "recall@5"


def read(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(name: str, rows: Iterable[Any]) -> None:
    (FOLDER / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    lengths = {d["id"]: len(d["text"]) for d in read("corpus.jsonl.gz")}
    questions = read("questions.jsonl.gz")
    answerable = [q for q in questions if q["state"] == "answerable"]

    def case(q: dict[str, Any]) -> dict[str, Any]:  # rag-ci's form: a whole passage is a span from 0 to its end
        ids = dict.fromkeys(g["document_id"] for g in q["gold"])
        passages = [{"doc_id": d, "char_start": 0, "char_end": lengths[d], "text": d} for d in ids]
        return {"id": q["id"], "question": q["question"], "required_passages": passages}

    write("questions.jsonl", questions)
    write("ragci_all.jsonl", map(case, questions))
    write("ragci_answerable.jsonl", map(case, answerable))
    traces: dict[str, Any] = {}
    for run in load_sweep(out=OUT, experiment="domains"):
        name = f"{run.params['embedder']}_{run.params['reranker']}"
        hits = {o.id: [(h.doc, h.score) for h in o.hits[:10]] for o in run.outcomes}
        rows = [{"question_id": i, "hits": [{"id": d, "score": s} for d, s in h]} for i, h in hits.items()]
        write(f"{name}.jsonl", rows)
        traces[name] = {q["question"]: [(d, lengths[d]) for d, _ in hits[q["id"]]] for q in answerable}
        if name == "hybrid_mix":  # 14 questions (4.9 %) that it misses anyway fail instead
            missed = [o.id for o in run.outcomes if o.state == "answerable" and o.values[METRIC] == 0][:14]
            write(
                "failing.jsonl",
                [
                    {"question_id": r["question_id"], "error": "TimeoutError"} if r["question_id"] in missed else r
                    for r in rows
                ],
            )
            texts = [q["question"] for q in answerable if q["id"] in missed]
            traces["failing"] = {q: None if q in texts else found for q, found in traces[name].items()}
    (FOLDER / "traces.json").write_text(json.dumps(traces), encoding="utf-8")


if __name__ == "__main__":
    main()
