"""Equality with tools that are not ours: trec_eval's own files, pytrec_eval, ranx and ir_measures."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denominator.metrics import ndcg_at_k, ranked, score_arrays, score_dicts
from denominator.ranking import run_from_dicts
from denominator.types import Evidence, Question

from .conftest import shared_path

pytestmark = pytest.mark.peers

Qrels = dict[str, dict[str, int]]
Scores = dict[str, dict[str, float]]

# our name -> trec_eval's measure
TREC = {
    "map": "map",
    "r_precision": "Rprec",
    "mrr": "recip_rank",
    "ndcg": "ndcg",
    **{f"precision@{k}": f"P_{k}" for k in (5, 10)},
    **{f"recall@{k}": f"recall_{k}" for k in (5, 10, 100)},
    **{f"ndcg@{k}": f"ndcg_cut_{k}" for k in (5, 10)},
    **{f"hit@{k}": f"success_{k}" for k in (1, 5, 10)},
    "map@10": "map_cut_10",
}
PRINTED = {  # trec_eval on qrels.test and results.test, all topics
    "map": 0.1785,
    "r_precision": 0.2174,
    "mrr": 0.4064,
    "precision@5": 0.2667,
    "precision@10": 0.3000,
    "recall@5": 0.0173,
    "recall@10": 0.0317,
    "recall@100": 0.4980,
    "ndcg@5": 0.2768,
    "ndcg@10": 0.3016,
    "hit@1": 0.3333,
    "hit@10": 0.6667,
}


def trec_qrels(path: Path) -> Qrels:
    out: Qrels = defaultdict(dict)
    for line in path.read_text(encoding="utf-8").splitlines():
        topic, _, document, grade = line.split()
        out[topic][document] = int(grade)
    return dict(out)


def trec_run(path: Path) -> Scores:
    out: Scores = defaultdict(dict)
    for line in path.read_text(encoding="utf-8").splitlines():
        topic, _, document, _, score, _ = line.split(maxsplit=5)
        out[topic][document] = float(score)
    return dict(out)


def close(name: str, got: Any, expected: float, tol: float = 1e-12) -> None:
    assert got is not None, name
    assert abs(float(got) - expected) <= tol, f"{name}: {got!r} is not {expected!r}"


def pytrec(qrels: Qrels, run: Scores) -> dict[str, dict[str, float]]:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    measures = {m.rsplit("_", 1)[0] if m[-1].isdigit() else m for m in TREC.values()}
    cuts = {m: [x.rsplit("_", 1)[1] for x in TREC.values() if x.startswith(m + "_")] for m in measures}
    wanted = {m + "." + ",".join(cuts[m]) if cuts[m] and m not in {"map", "ndcg"} else m for m in measures}
    return pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(run)


def random_case(seed: int, *, ties: bool) -> tuple[Qrels, Scores]:
    """One topic with graded and negative judgements; the judged ids are some of the ranked ones and some others."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    ids = [f"d{i}" for i in rng.permutation(200)[:n]]
    values = rng.integers(0, 8, n) / 4 if ties else rng.permutation(n) / 64  # exact in float32
    judged = [f"d{i}" for i in rng.permutation(200)[: rng.integers(2, 80)]] + ids[:1]
    grades = {i: int(rng.integers(-1, 4)) for i in judged}
    grades[judged[0]] = int(rng.integers(1, 4))
    return {"q": grades}, {"q": dict(zip(ids, values.tolist(), strict=True))}


def questions_of(qrels: Qrels) -> list[Question]:
    return [Question(q, answerability="answerable", grades=grades) for q, grades in qrels.items()]


def test_trec_eval_printed_means() -> None:
    folder = shared_path("data/trec")
    qrels, run = trec_qrels(folder / "qrels.test"), trec_run(folder / "results.test")
    table = score_dicts(qrels, run, list(PRINTED), ties="trec")
    for name, printed in PRINTED.items():
        assert round(table.mean(name) or 0.0, 4) == pytest.approx(printed, abs=1e-9), name


def test_trec_eval_printed_per_topic() -> None:
    folder = shared_path("data/trec")
    qrels, run = trec_qrels(folder / "qrels.test"), trec_run(folder / "results.test")
    ours = {theirs: name for name, theirs in TREC.items()}
    table = score_dicts(qrels, run, list(TREC), ties="trec")
    position = {q: i for i, q in enumerate(table.question_ids)}
    checked = 0
    for line in (folder / "out.test.aq").read_text(encoding="utf-8").splitlines():
        measure, topic, printed = line.split()
        if measure in ours and topic in position:
            close(line, round(float(table.values[ours[measure]][position[topic]]), 4), float(printed), 1e-9)
            checked += 1
    assert checked == 3 * len([m for m in TREC.values() if m != "map_cut_10"]) + 3


@pytest.mark.parametrize("rel_level", ["qrels.test", "qrels.rel_level"])
def test_pytrec_eval_on_trec_eval_files(rel_level: str) -> None:
    folder = shared_path("data/trec")
    qrels, run = trec_qrels(folder / rel_level), trec_run(folder / "results.test")
    run = {q: row for q, row in run.items() if q in qrels}
    theirs = pytrec(qrels, run)
    table = score_dicts(qrels, run, list(TREC), ties="trec")
    columns = ranked(run_from_dicts(run), questions_of(qrels), list(TREC), ties="trec")
    for i, q in enumerate(table.question_ids):
        for name, measure in TREC.items():
            if table.groups[i]:
                close(name, table.values[name][i], theirs[q][measure])
                close(name, columns.values[name][i], theirs[q][measure])


def test_pytrec_eval_on_300_random_runs_with_ties() -> None:
    qrels: Qrels = {}
    run: Scores = {}
    for seed in range(300):
        one_qrels, one_run = random_case(seed, ties=True)
        qrels[f"q{seed}"], run[f"q{seed}"] = one_qrels["q"], one_run["q"]
    theirs = pytrec(qrels, run)
    table = score_dicts(qrels, run, list(TREC), ties="trec")
    columns = ranked(run_from_dicts(run), questions_of(qrels), list(TREC), ties="trec")
    checked = 0
    for i, q in enumerate(table.question_ids):
        for name, measure in TREC.items():
            close(f"{q} {name}", table.values[name][i], theirs[q][measure])
            close(f"{q} {name}", columns.values[name][i], theirs[q][measure])
            checked += 1
    assert checked == 300 * len(TREC)


def test_pytrec_eval_drops_what_we_count() -> None:
    """Two intended differences: a topic that the run lacks, and one with only grade-0 judgements."""
    qrels: Qrels = {"q1": {"a": 1}, "q2": {"b": 1}, "q3": {"c": 0}}
    run: Scores = {"q1": {"a": 1.0}, "q3": {"c": 1.0}}
    theirs = pytrec(qrels, run)
    table = score_dicts(qrels, run, ["recall@5"])
    assert {q: r["recall_5"] for q, r in theirs.items()} == {"q1": 1.0, "q3": 0.0}
    assert table.mean("recall@5") == 0.5
    assert table.missing == ("q2",)
    assert table.row(2) == ({}, {})


RANX = {
    **{f"{ours}@{k}": f"{theirs}@{k}" for k in (1, 3, 10) for ours, theirs in (
        ("recall", "recall"), ("precision", "precision"), ("hit", "hit_rate"), ("mrr", "mrr"),
        ("ndcg", "ndcg"), ("ndcg_exp", "ndcg_burges"),
    )},
    "map": "map",
    "r_precision": "r-precision",
}  # fmt: skip


@pytest.mark.slow
def test_ranx_on_300_random_runs_without_ties() -> None:
    ranx = pytest.importorskip("ranx")
    qrels: Qrels = {}
    run: Scores = {}
    for seed in range(300):
        one_qrels, one_run = random_case(seed, ties=False)
        qrels[f"q{seed:03d}"] = {i: max(g, 0) for i, g in one_qrels["q"].items()}
        run[f"q{seed:03d}"] = one_run["q"]
    peer_run = ranx.Run(run)
    ranx.evaluate(ranx.Qrels(qrels), peer_run, list(RANX.values()), return_mean=False)
    table = score_dicts(qrels, run, list(RANX))
    for name, theirs in RANX.items():
        for i, q in enumerate(table.question_ids):
            close(f"{q} {name}", table.values[name][i], peer_run.scores[theirs][q])


def test_ir_measures_on_random_runs_without_ties() -> None:
    ir = pytest.importorskip("ir_measures")
    names = {
        "recall@5": ir.R @ 5,
        "precision@5": ir.P @ 5,
        "hit@5": ir.Success @ 5,
        "mrr@10": ir.RR @ 10,
        "ndcg@10": ir.nDCG @ 10,
        "map": ir.AP,
        "r_precision": ir.Rprec,
        "judged@10": ir.Judged @ 10,
    }
    qrels: Qrels = {}
    run: Scores = {}
    for seed in range(100):
        one_qrels, one_run = random_case(seed, ties=False)
        qrels[f"q{seed}"], run[f"q{seed}"] = one_qrels["q"], one_run["q"]
    table = score_dicts(qrels, run, list(names))
    position = {q: i for i, q in enumerate(table.question_ids)}
    back = {measure: name for name, measure in names.items()}
    checked = 0
    for metric in ir.iter_calc(list(names.values()), qrels, run):
        name = back[metric.measure]
        close(f"{metric.query_id} {name}", table.values[name][position[metric.query_id]], metric.value)
        checked += 1
    assert checked == 100 * len(names)


def test_scikit_learn_ndcg_without_ties() -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    for seed in range(40):
        qrels, run = random_case(seed, ties=False)
        row, grades = run["q"], {i: max(g, 0) for i, g in qrels["q"].items()}
        every = [*row, *(i for i in grades if i not in row)]
        if len(every) < 2:
            continue
        lowest = min(row.values()) - 1  # what was not retrieved comes after everything that was, beyond the cut
        k = min(5, len(row))
        expected = sklearn_metrics.ndcg_score(
            [[grades.get(i, 0) for i in every]], [[row.get(i, lowest) for i in every]], k=k
        )
        positive = {i: g for i, g in grades.items() if g > 0}
        close("ndcg", ndcg_at_k(row, positive, k), expected)


def test_doors_agree_on_random_runs() -> None:
    """Dicts, columns and integer codes give the same numbers (codes are given in id order, so ties agree)."""
    names = ["recall@5", "ndcg@10", "mrr@10", "map@20", "precision@5", "hit@3", "complete@5", "r_precision"]
    for seed in range(60):
        qrels, run = random_case(seed, ties=True)
        table = score_dicts(qrels, run, names)
        gold = {i: g for i, g in qrels["q"].items() if g > 0}
        question = Question("q", gold=tuple((Evidence(i),) for i in gold), grades=gold)
        columns = ranked(run_from_dicts(run), [question], names)
        codes = {i: n for n, i in enumerate(sorted({*run["q"], *gold}))}
        arrays = score_arrays(
            [[codes[i] for i in run["q"]]],
            [list(run["q"].values())],
            [0, len(gold)],
            [codes[i] for i in gold],
            names,
            gold_grades=list(gold.values()),
        )
        for name in names:
            assert columns.values[name][0] == arrays[name][0] == table.values[name][0], name
