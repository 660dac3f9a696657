"""A person's own retrieval app, traced by MLflow, scored over the questions that can be scored.

    python experiments/scorers/own_app.py            # every 3rd question of the bundled set
    python experiments/scorers/own_app.py 1          # all of them

Everything lands in denominator-out/scorers.db in the folder of the call.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import bm25s
import mlflow
from mlflow.entities import Document

from denominator.readers.native import Demo
from denominator.tracking import scorers
from denominator.types import Evidence

STEP = int(sys.argv[1]) if len(sys.argv) > 1 else 3
DATA = Demo().load()
TEXTS = {document.id: document.text for document in DATA.documents}

# The app: paragraphs, BM25, and a refusal when the best paragraph hardly matches. It knows nothing about scoring.
PARAGRAPHS = [(d, m.start(), m.group()) for d, text in TEXTS.items() for m in re.finditer(r"\S(?:.|\n(?!\n))*", text)]
INDEX = bm25s.BM25()
INDEX.index(bm25s.tokenize([text for *_, text in PARAGRAPHS], show_progress=False), show_progress=False)


@mlflow.trace(span_type="RETRIEVER")
def retrieve(question: str, k: int = 10) -> list[Document]:
    places, scores = INDEX.retrieve(bm25s.tokenize(question, show_progress=False), k=k, show_progress=False)
    return [
        Document(PARAGRAPHS[p][2], {"doc_uri": PARAGRAPHS[p][0], "start_index": PARAGRAPHS[p][1], "bm25": float(s)})
        for p, s in zip(places[0].tolist(), scores[0].tolist(), strict=True)
    ]


@mlflow.trace
def app(question: str) -> str:
    best = retrieve(question)[0]
    return "NO_ANSWER" if best.metadata["bm25"] < 5 else best.page_content.split(". ")[0]


# The questions, with their labels and gold as expectations.
def gold(alternative: Evidence) -> dict[str, Any]:
    if alternative.start is None:
        return {"document_id": alternative.doc}
    return {"document_id": alternative.doc, "start": alternative.start, "end": alternative.end}


ROWS = []
for question in DATA.questions[::STEP]:
    expected: dict[str, Any] = {"id": question.id, "gold": [[gold(a) for a in group] for group in question.gold]}
    if question.answerability != "unlabelled":
        expected["answerability"] = question.answerability
    ROWS.append({"inputs": {"question": question.question}, "expectations": expected})

out = Path("denominator-out")
out.mkdir(exist_ok=True)
mlflow.set_tracking_uri(f"sqlite:///{out.absolute() / 'scorers.db'}")
if mlflow.get_experiment_by_name("own app") is None:
    mlflow.create_experiment("own app", artifact_location=(out / "scorers").absolute().as_uri())
mlflow.set_experiment("own app")

scored = scorers.evaluate(
    ROWS,
    [
        scorers.recall_at_k(1),
        scorers.recall_at_k(5),
        scorers.mrr_at_k(5),
        scorers.coverage_at_budget(200, documents=TEXTS),
        scorers.abstention(),
    ],
    app,
    eligibility="lenient",  # the bundled set holds questions without a label, on purpose
)
own = [f"  {name}: {value:.4g}" for name, value in sorted(scored.result.metrics.items())]
sys.stdout.write("\n".join(["", str(scored), "", "MLflow's own means of the same scorers:", *own, ""]))
