"""What a second worker is worth, and that it changes no byte.

    python benchmarks/parallel.py                    # three documents of chunking_eval, 12 cells, 3 rounds
    python benchmarks/parallel.py --documents all --rounds 1
    python benchmarks/parallel.py --rounds 1 --no-blocks

The sweep: four chunkers × the packaged transformer × three rerankers, one cold cache per run. The arms, alternately:
one joblib worker, two joblib workers, and no launcher at all; libraries have one thread in all three. Then the rankings
are made again from the same vectors with other block sizes and numbers of threads, and the whole sweep once with two
threads instead of two workers: every per_question.jsonl must have the same bytes. Wall times hold the start of all
processes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "chunking-eval"
GRID = ("chunker=fixed_128,fixed_256,sentences_128,recursive_256", "embedder=onnx", "reranker=none,mix,maxsim")
ARMS = {
    "one joblib worker": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=1"),
    "two joblib workers": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    "no launcher": (),
}
BLOCKS = ((1, 7, 3), (2, 1000, 64), (2, 129, 1))
"""Threads, chunks a block, questions a block."""
LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
KEPT = ("onnx_vectors", "onnx_queries")


def environment(threads: int) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DENOMINATOR_", "MLFLOW_"))}
    return env | dict.fromkeys(("DENOMINATOR_THREADS", *LIBRARIES), str(threads)) | {"HF_HUB_OFFLINE": "1"}


def selected(source: Path, names: str, folder: Path) -> Path:
    """The data set with some of its documents and the questions that were asked of them."""
    if names == "all":
        return source
    kept = set(names.split(","))
    folder.mkdir()
    for file in ("corpus", "questions"):
        with (
            gzip.open(source / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines,
            gzip.open(folder / f"{file}.jsonl.gz", "wt", encoding="utf-8") as made,
        ):
            for line in lines:
                row = json.loads(line)
                if (row["id"] if file == "corpus" else row["slice"]["corpus"]) in kept:
                    made.write(line)
    return folder


def sweep(data: Path, out: Path, *more: str, threads: int = 1, blocks: tuple[int, int] | None = None) -> list[float]:
    """Wall and processor seconds of a sweep in processes of its own."""
    command = [sys.executable, __file__, "--child", *(map(str, blocks) if blocks else ("0", "0"))]
    command += ["dataset=chunking_eval", f"dataset.folder={data}", f"out={out}", *GRID, *more]
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(threads))
    wall, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-3000:])
    return [wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]


def child(arguments: list[str]) -> int:
    """`denominator sweep`, with other block sizes where they are given."""
    from denominator.cli import main as denominator

    chunks, questions = map(int, arguments[:2])
    if chunks:
        from denominator.retrievers import dense, lexical, static

        given = dense.search.__kwdefaults__
        assert given is not None
        given |= {"chunks_per_block": chunks, "questions_per_block": questions}
        dense.NUMBERS_PER_BLOCK = 1000
        lexical.POSTINGS_PER_BLOCK = 1000
        static.VECTORS_PER_BLOCK = chunks
    return denominator(["sweep", "-q", *arguments[2:]])


def outcomes(out: Path) -> dict[str, bytes]:
    """per_question.jsonl of every cell by its name."""
    from denominator.tracking import Store, default_uri

    store = Store(default_uri(out), "denominator", out)
    cells = store.search("tags.kind = 'cell'")
    found = {c.name: store.out / "artifacts" / c.run_id / "artifacts" / "per_question.jsonl" for c in cells}
    assert len(found) == len(cells) == 12
    return {name: path.read_bytes() for name, path in sorted(found.items())}


def vectors_only(source: Path, target: Path) -> None:
    """A cache that holds the vectors of another one and nothing else: rankings are made again."""
    from denominator.cache import Cache

    for entry in Cache(source).entries():
        if entry.stage in KEPT:
            shutil.copytree(entry.path, target / entry.path.relative_to(source))


def waits(out: Path) -> str:
    """When cells began and what they took, as the event log has it."""
    (log,) = out.glob("hydra/*/events.jsonl")
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    begun = {e["job"]: e["time"] for e in events if e["what"] == "started"}
    first = min(begun.values())
    return "\n".join(
        f"    {e['name']:32} begun at {begun[e['job']] - first:6.1f} s, took {e['seconds']:6.1f} s"
        for e in events
        if e["what"] == "recorded"
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        raise SystemExit(child(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=BESIDE, help="the folder of chunking-eval")
    parser.add_argument("--documents", default="chatlogs,state_of_the_union,wikitexts", help="ids, or all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", action=argparse.BooleanOptionalAction, default=True, help="the part on bytes alone")
    parser.add_argument("--cells", action="store_true", help="also when each cell of two workers began")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="denominator-parallel-"))
    try:
        data = selected(args.data, args.documents, folder / "data")
        load = os.getloadavg()[0]
        sweep(data, folder / "warm-up", "chunker=fixed_512", "reranker=none")  # libraries and files are in memory
        shutil.rmtree(folder / "warm-up")
        taken: dict[str, list[list[float]]] = {name: [] for name in ARMS}
        reference: dict[str, bytes] = {}
        vectors: Path | None = None
        for number in range(args.rounds):
            arms = list(ARMS.items())
            for name, launcher in arms if number % 2 == 0 else arms[::-1]:
                out = folder / f"{number}-{name.replace(' ', '-')}"
                taken[name].append(sweep(data, out, *launcher))
                found = outcomes(out)
                reference = reference or found
                assert found == reference, f"other bytes: {name}"
                print(f"  {name:20} {taken[name][-1][0]:7.1f} s", flush=True)
                if args.cells and name == "two joblib workers":
                    print(waits(out))
                if vectors is None:
                    vectors = out / "cache"
                else:
                    shutil.rmtree(out)
        print(
            f"{len(reference)} cells, {args.rounds} rounds, load before {load:.1f} on {os.cpu_count()} cores; medians"
        )
        median = {n: [statistics.median(t[i] for t in rounds) for i in (0, 1)] for n, rounds in taken.items()}
        for name, (wall, busy) in median.items():
            print(f"{name:20} {wall:7.1f} s wall, {busy:7.1f} s CPU, {busy / wall:.2f} cores")
        two = median["two joblib workers"][0]
        for name in ("one joblib worker", "no launcher"):
            print(f"two joblib workers are {median[name][0] / two:.2f} × as fast as {name}")
        if args.blocks:
            wall, _ = sweep(data, folder / "threads", threads=2)
            assert outcomes(folder / "threads") == reference, "other bytes: two threads"
            print(f"no launcher, two threads: {wall:.1f} s, the same bytes")
            assert vectors is not None
            for threads, chunks, questions in BLOCKS:
                out = folder / f"blocks-{threads}-{chunks}-{questions}"
                vectors_only(vectors, out / "cache")
                sweep(data, out, threads=threads, blocks=(chunks, questions))
                assert outcomes(out) == reference, f"other bytes: blocks of {chunks} × {questions}, {threads} threads"
                print(
                    f"blocks of {chunks} chunks × {questions} questions, {threads} threads: the same bytes", flush=True
                )
        size = sum(map(len, reference.values()))
        print(f"per_question.jsonl of all arms: byte-identical ({size:,} bytes in {len(reference)} files)")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
