"""Search beyond grids: Hydra's ranges, choices and globs, Optuna with one objective or two, trials that fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from denominator import app, config, rehearsal
from denominator.cli import main
from denominator.errors import ConfigError
from denominator.types import Plan
from tests.test_app import _clean, call, store_of, workplace, write_data  # noqa: F401  # fixtures
from tests.test_conf import jobs_of


def names_of(*overrides: str) -> list[str]:
    return [job.name for job in jobs_of("dataset=demo", "eligibility=lenient", *overrides)]


def test_ranges_choices_and_globs_are_grids() -> None:
    assert names_of("embedder.k1=range(0.5,1.6,0.5)") == [
        f"fixed_128 · bm25 k1={k} · none" for k in ("0.5", "1.0", "1.5")
    ]
    assert names_of("chunker=choice(whole,sentences_128)") == ["whole · bm25 · none", "sentences_128 · bm25 · none"]
    assert names_of("chunker=glob(sentences_*)") == ["sentences_128 · bm25 · none", "sentences_256 · bm25 · none"]


def test_a_setting_that_only_some_parts_have_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"chunker\.overlap: chunker has no setting 'overlap'"):
        names_of("chunker=fixed_128,sentences_128", "chunker.overlap=0,32")
    jobs = jobs_of("+experiment=conditional")
    assert [j.params.get("chunker.overlap") for j in jobs][::2] == [32, 0, 64, None, None]


def test_each_objective_knows_its_direction() -> None:
    plan = Plan()
    assert config.directions_of(("headline",), plan) == ["maximize"]
    assert config.directions_of(("recall@5", "latency_ms_median"), plan) == ["maximize", "minimize"]
    with pytest.raises(ConfigError, match="did you mean 'latency_ms_median'"):
        config.directions_of(("latency_ms_mdian",), plan)
    with pytest.raises(ConfigError, match="empty list"):
        config.directions_of((), plan)


def test_an_objective_that_is_undefined_is_none_and_never_nan() -> None:
    values: dict[str, float | None] = {"a": 0.5, "b": None, "c": math.nan, "d": 2.0}
    assert app._objective(["a"], values.get) == 0.5
    assert app._objective(["a", "d"], values.get) == [0.5, 2.0]
    for names in (["b"], ["c"], ["a", "b"]):
        assert app._objective(names, values.get) is None


def best(folder: Path) -> dict[str, Any]:
    newest = max(
        (folder / "denominator-out" / "hydra").glob("*/optimization_results.yaml"), key=lambda p: p.stat().st_mtime_ns
    )
    found: dict[str, Any] = yaml.safe_load(newest.read_text(encoding="utf-8"))
    return found


def test_a_search_the_wrong_way_is_refused(
    workplace: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    assert call(workplace, monkeypatch, "sweep", "hydra/sweeper=optuna", "embedder.k1=choice(0.5,1.5)") == 64
    assert "wants hydra.sweeper.direction=maximize" in capsys.readouterr().err


@pytest.mark.slow
def test_an_undefined_trial_fails_and_the_search_goes_on(
    workplace: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """F28: half of the trials fail in a part that raises; the others are compared, and the search ends with a best."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    monkeypatch.setenv("STUB", "raise")
    search = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "hydra.sweeper.direction=maximize",
              "hydra.sweeper.n_trials=8", "hydra.sweeper.sampler.seed=1")  # fmt: skip
    grid = ("chunker=choice(whole,sentences_128)", "reranker=choice(none,stub)", "tracking.experiment=search")
    assert call(workplace, monkeypatch, "sweep", *search, *grid) == 1
    said = capsys.readouterr().out
    assert "the service refused the key" in said
    failed = store_of(workplace, "search").search("tags.kind = 'cell' and attributes.status = 'FAILED'")
    assert len({c.tags["cell_key"] for c in failed}) == 2  # whole and sentences_128 with the part that raises
    assert len(failed) + said.count(" · none") >= 4
    found = best(workplace)
    cells = {c.name: c for c in store_of(workplace, "search").search("tags.kind = 'cell' and tags.recorded = 'true'")}
    top = max(c.estimate(c.tags["headline_metric"]).value or 0.0 for c in cells.values())
    assert found["best_value"] == pytest.approx(top, abs=1e-12)
    assert found["best_params"]["reranker"] == "none"
    # Again: cells of the record give their value without being computed.
    monkeypatch.setenv("STUB", "")
    again = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "hydra.sweeper.direction=maximize")
    more = ("hydra.sweeper.n_trials=3", "chunker=choice(whole,sentences_128)", "tracking.experiment=search")
    assert call(workplace, monkeypatch, "sweep", *again, *more) == 0
    assert "recorded before" in capsys.readouterr().out
    assert best(workplace)["best_value"] == pytest.approx(top, abs=1e-12)


@pytest.mark.slow
def test_two_objectives_give_a_front(
    workplace: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    search = (
        "hydra/sweeper=optuna",
        "hydra/sweeper/sampler=random",
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.sampler.seed=0",
    )
    goals = ("objective=[recall@5,n_chunks]", "hydra.sweeper.direction=[maximize,minimize]")
    assert call(workplace, monkeypatch, "sweep", *search, *goals, "chunker=choice(whole,sentences_128)",
                "embedder.k1=interval(0.5,2.0)", "tracking.experiment=front") == 0  # fmt: skip
    capsys.readouterr()
    solutions = best(workplace)["solutions"]
    assert solutions
    assert all(len(s["values"]) == 2 for s in solutions)
    names = [c.name for c in store_of(workplace, "front").search("tags.kind = 'cell' and tags.recorded = 'true'")]
    assert all("k1=" in name for name in names)


# ------------------------------------------------------------------ --dry-run


def test_a_rehearsal_does_nothing_and_knows_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "data")
    grid = ("chunker=whole,sentences_128", "reranker=none,maxsim")
    assert call(tmp_path, monkeypatch, "sweep", "--dry-run", *grid) == 0
    said = capsys.readouterr().out
    for text in ("cells: 4, recorded 0, to run 4", "chunkings: 2 distinct, 0 cached, 2 to compute", "nothing was run",
                 "first stages: 2 distinct", "rerankings: 2 distinct", "measured rates"):  # fmt: skip
        assert text in said
    assert not (tmp_path / "denominator-out").exists()
    assert call(tmp_path, monkeypatch, "sweep", "chunker=whole,sentences_128") == 0
    capsys.readouterr()
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "denominator-out" / "cache").rglob("*"))
    assert call(tmp_path, monkeypatch, "sweep", "--dry-run", *grid) == 0
    said = capsys.readouterr().out
    for text in ("cells: 4, recorded 2, to run 2", "chunkings: 2 distinct, 2 cached, 0 to compute",
                 "first stages: 2 distinct, 2 cached, 0", "rerankings: 2 distinct, 0 cached, 2 to compute",
                 "whole · bm25 · none: recorded", "whole · bm25 · maxsim: to compute: rerank"):  # fmt: skip
        assert text in said
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "denominator-out" / "cache").rglob("*")) == before
    assert call(tmp_path, monkeypatch, "sweep", "--dry-run", "chunker=wohle") == 64


def test_a_rehearsal_counts_what_endpoints_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 documents; 15 questions in one search each: 15 × 2 / 1,000. Tokens × price for the embedder."""
    write_data(tmp_path / "data")
    endpoints = ("embedder=openai", "embedder.url=http://127.0.0.1:9/v1", "embedder.price_per_million_tokens=100",
                 "reranker=endpoint_cohere", "reranker.url=http://127.0.0.1:9",
                 "reranker.price_per_thousand_searches=2")  # fmt: skip
    assert call(tmp_path, monkeypatch, "sweep", "--dry-run", "chunker=whole", *endpoints) == 0
    said = capsys.readouterr().out
    assert "at most 0.03 in the currency of its price (15 searches" in said
    assert "money: embedder" in said
    assert "unknown cost not counted: OpenAI, Rerank" in said


def test_rates_scale_and_say_where_they_come_from(tmp_path: Path) -> None:
    assert rehearsal._told("first_stage", "BM25, 472 questions, 1319 chunks") == 1791
    assert rehearsal._told("rerank", "MaxSim over Static, 472 questions") == 472
    assert rehearsal._told("chunks", "Fixed, 12 documents") == 12


def test_a_missing_plug_in_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if __import__("importlib.util").util.find_spec("hydra_plugins.hydra_ray_launcher"):
        pytest.skip("the plug-in is installed")
    assert main(["sweep", "hydra/launcher=ray"]) == 64
    assert "pip install 'denominator[ray]'" in capsys.readouterr().err
