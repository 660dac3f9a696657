"""Speed of the ranked metrics beside other tools, in one run: `python benchmarks/metrics.py [--quick]`.

100,000 questions × 100 hits; recall@{1,5,10,20}, nDCG@10 and MRR together. Two races:

- from Python dicts, everything checked, ids as a file reader makes them (every id its own string object): against
  pytrec_eval, ir_measures and ranx, each from the same dicts;
- from integer columns, against ranx from its own arrays (compiled and warm), with the same number of threads:
  canonical input, and unsorted input with ranx's sort counted.

Values are asserted equal (1e-12) before anything is reported. Times are the best of the repeats; memory is what our
call allocates at its peak beside its input (tracemalloc sees numpy's memory too).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from denominator.metrics import score_arrays, score_dicts

NAMES = ["recall@1", "recall@5", "recall@10", "recall@20", "ndcg@10", "mrr"]
DOCUMENTS = 1_000_000


def best(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times, value = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        value = call()
        times.append(time.perf_counter() - start)
    return min(times), value


def peak(call: Callable[[], Any]) -> float:
    """MB allocated at the peak of the call, beyond what was there before."""
    tracemalloc.start()
    call()
    _, high = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return high / 2**20


def make(questions: int, depth: int) -> dict[str, Any]:
    """Distinct ids per question, strictly falling scores, 1 to 3 gold ids, about half of them retrieved."""
    rng = np.random.default_rng(0)
    ids = np.empty((questions, depth), np.int32)
    for i in range(0, questions, 1000):  # a random start and an odd stride: distinct without a permutation per row
        n = min(1000, questions - i)
        start = rng.integers(0, DOCUMENTS, (n, 1))
        stride = rng.integers(0, DOCUMENTS // 2, (n, 1)) * 2 + 1
        stride += stride % 5 == 0  # keep it coprime to the number of documents, or nearly so
        ids[i : i + n] = (start + stride * np.arange(depth)) % DOCUMENTS
    ids = distinct(ids, rng)
    scores = np.sort(rng.random((questions, depth)), axis=1)[:, ::-1].copy()
    size = rng.integers(1, 4, questions)
    offsets = np.concatenate([[0], np.cumsum(size)])
    row = np.repeat(np.arange(questions), size)
    gold = ids[row, rng.integers(0, depth, len(row))].copy()
    away = rng.random(len(row)) < 0.5
    gold[away] = rng.integers(DOCUMENTS, 2 * DOCUMENTS, int(away.sum()))
    key = row * (2 * DOCUMENTS) + gold
    _, first = np.unique(key, return_index=True)
    keep = np.zeros(len(row), bool)
    keep[first] = True
    gold, row = gold[keep], row[keep]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=questions))])
    grades = rng.integers(1, 4, len(gold))
    return {"ids": ids, "scores": scores, "offsets": offsets, "gold": gold, "grades": grades, "row": row}


def distinct(ids: Any, rng: Any) -> Any:
    for i, row in enumerate(np.sort(ids, axis=1)):
        if (row[1:] == row[:-1]).any():
            ids[i] = rng.choice(DOCUMENTS, ids.shape[1], replace=False)
    return ids


def as_dicts(data: dict[str, Any]) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Own string objects for every id, as a reader that splits lines makes them; rows not in rank order."""
    rng = np.random.default_rng(1)
    run: dict[str, dict[str, float]] = {}
    order = rng.permutation(data["ids"].shape[1])
    for i, (ids, scores) in enumerate(zip(data["ids"], data["scores"], strict=True)):
        run[f"q{i}"] = {f"d{d:07d}": s for d, s in zip(ids[order].tolist(), scores[order].tolist(), strict=True)}
    qrels: dict[str, dict[str, int]] = {f"q{i}": {} for i in range(len(data["ids"]))}
    for i, d, g in zip(data["row"].tolist(), data["gold"].tolist(), data["grades"].tolist(), strict=True):
        qrels[f"q{i}"][f"d{d:07d}"] = g
    return qrels, run


def same(ours: dict[str, Any], theirs: dict[str, Any], what: str) -> None:
    for name in NAMES:
        gap = float(np.abs(np.asarray(ours[name]) - np.asarray(theirs[name])).max())
        assert gap < 1e-12, f"{what}: {name} differs by {gap}"


def dict_race(data: dict[str, Any], repeats: int, peers: list[str]) -> list[dict[str, Any]]:
    qrels, run = as_dicts(data)
    seconds, table = best(lambda: score_dicts(qrels, run, NAMES), repeats)
    rows = [{"what": "denominator", "seconds": seconds, "extra MB": peak(lambda: score_dicts(qrels, run, NAMES))}]
    ours = table.values
    if "pytrec_eval" in peers:
        import pytrec_eval

        asked = {"recall.1,5,10,20", "ndcg_cut.10", "recip_rank"}
        t, out = best(lambda: pytrec_eval.RelevanceEvaluator(qrels, asked).evaluate(run), repeats)
        keys = dict(
            zip(NAMES, ["recall_1", "recall_5", "recall_10", "recall_20", "ndcg_cut_10", "recip_rank"], strict=True)
        )
        same(ours, {n: [out[q][m] for q in table.question_ids] for n, m in keys.items()}, "pytrec_eval")
        rows.append({"what": "pytrec_eval", "seconds": t})
    if "ir_measures" in peers:
        import ir_measures as ir

        measures = [ir.R @ 1, ir.R @ 5, ir.R @ 10, ir.R @ 20, ir.nDCG @ 10, ir.RR]
        t, out = best(lambda: list(ir.iter_calc(measures, qrels, run)), max(1, repeats - 2))
        position = {q: i for i, q in enumerate(table.question_ids)}
        names = dict(zip(measures, NAMES, strict=True))
        theirs = {n: np.zeros(len(position)) for n in NAMES}
        for m in out:
            theirs[names[m.measure]][position[m.query_id]] = m.value
        same(ours, theirs, "ir_measures")
        rows.append({"what": "ir_measures", "seconds": t})
    if "ranx" in peers:
        import ranx

        small = {q: qrels[q] for q in list(qrels)[:20]}
        ranx.evaluate(ranx.Qrels(small), ranx.Run({q: run[q] for q in small}), NAMES)  # compile

        def call() -> Any:
            peer_qrels, peer_run = ranx.Qrels(qrels), ranx.Run(run)
            ranx.evaluate(peer_qrels, peer_run, NAMES, return_mean=False, threads=1, save_results_in_run=True)
            return peer_run

        t, peer_run = best(call, 1)
        same(ours, {n: [peer_run.scores[n][q] for q in table.question_ids] for n in NAMES}, "ranx")
        rows.append({"what": "ranx", "seconds": t})
    return rows


def array_race(data: dict[str, Any], repeats: int, threads: int, peers: list[str]) -> list[dict[str, Any]]:
    ids, scores, offsets = data["ids"], data["scores"], data["offsets"]
    rng = np.random.default_rng(2)
    order = rng.permuted(np.tile(np.arange(ids.shape[1]), (len(ids), 1)), axis=1)
    mixed_ids, mixed_scores = np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)
    del order

    def ours(i: Any, s: Any) -> Callable[[], Any]:
        return lambda: score_arrays(i, s, offsets, data["gold"], NAMES, gold_grades=data["grades"], threads=threads)

    rows = []
    sorted_time, values = best(ours(ids, scores), repeats * 3)
    rows.append({"what": "denominator, canonical", "seconds": sorted_time, "extra MB": peak(ours(ids, scores))})
    mixed_time, mixed_values = best(ours(mixed_ids, mixed_scores), repeats * 3)
    rows.append(
        {"what": "denominator, unsorted", "seconds": mixed_time, "extra MB": peak(ours(mixed_ids, mixed_scores))}
    )
    same(values, mixed_values, "order of rows")
    if "ranx" in peers:
        import numba
        import ranx

        numba.set_num_threads(threads)
        size = int(np.diff(offsets).max())
        qrels = np.zeros((len(ids), size, 2))
        qrels[:, :, 0] = -1.0  # cells without a judgement: grade 0, cleaned away by ranx
        column = np.arange(len(data["gold"])) - np.repeat(offsets[:-1], np.diff(offsets))
        qrels[data["row"], column, 0] = data["gold"]
        qrels[data["row"], column, 1] = data["grades"]
        by_grade = np.argsort(-qrels[:, :, 1], axis=1, kind="stable")  # its ideal ranking is the order of its qrels
        qrels = np.take_along_axis(qrels, by_grade[:, :, None], 1)
        run = np.stack([ids.astype(np.float64), scores], axis=2)
        call = lambda r: ranx.evaluate(qrels, r, NAMES, return_mean=False, threads=threads)  # noqa: E731
        call(run[:50])
        t, theirs = best(lambda: call(run), repeats)
        same(values, theirs, "ranx from arrays")
        rows.append({"what": "ranx from arrays, canonical", "seconds": t})
        mixed = np.stack([mixed_ids.astype(np.float64), mixed_scores], axis=2)
        sort = sorter()
        sort(mixed[:50].copy())

        def with_sort() -> Any:
            return call(sort(mixed))

        t, theirs = best(with_sort, repeats)
        same(values, theirs, "ranx from arrays, sorted first")
        rows.append({"what": "ranx from arrays, unsorted (its sort counted)", "seconds": t})
    return rows


def sorter() -> Callable[[Any], Any]:
    """ranx sorts a row by `row[np.argsort(row[:, 1])[::-1]]` inside its compiled loop; the same, on all threads."""
    import numba

    @numba.njit(parallel=True)
    def sort(run: Any) -> Any:  # pragma: no cover - compiled
        out = np.empty_like(run)
        for i in numba.prange(len(run)):
            order = np.argsort(-run[i, :, 1])
            for j in range(run.shape[1]):
                out[i, j, 0] = run[i, order[j], 0]
                out[i, j, 1] = run[i, order[j], 1]
        return out

    return sort


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        extra = f"   {row['extra MB']:6.1f} MB extra" if "extra MB" in row else ""
        print(f"  {row['what']:<48}{row['seconds'] * 1000:10.1f} ms{extra}")
    for ours in [r for r in rows if r["what"].startswith("denominator")]:
        kind = ours["what"].partition(", ")[2]
        others = [r for r in rows if not r["what"].startswith("denominator") and kind in r["what"]]
        if others:
            fastest = min(others, key=lambda r: r["seconds"])
            times = fastest["seconds"] / ours["seconds"]
            print(f"  {times:.1f} times as fast as {fastest['what']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 questions, for a look")
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", default="pytrec_eval,ir_measures,ranx", help="comma-separated; empty for none")
    parser.add_argument("--only", choices=["dicts", "arrays"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    questions = 2000 if args.quick else args.questions
    peers = [p for p in args.peers.split(",") if p]
    data = make(questions, args.depth)
    print(f"{questions:,} questions x {args.depth} hits, {', '.join(NAMES)}; numpy {np.__version__}, "
          f"Python {platform.python_version()}")  # fmt: skip
    results = {}
    if args.only != "dicts":
        results["arrays"] = array_race(data, args.repeats, args.threads, peers)
        show(f"from integer columns, {args.threads} threads", results["arrays"])
    if args.only != "arrays":
        results["dicts"] = dict_race(data, args.repeats, peers)
        show("from dicts, everything checked, one thread", results["dicts"])
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
