"""Every configuration that ships composes to a checked cell, and the checks know names, types and impossible values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hydra.types import RunMode

from denominator import app, composing, config
from denominator.embedders import BM25, Hybrid, Static
from denominator.errors import ConfigError, MeasurementError
from denominator.rerankers import Mix
from denominator.types import Plan

CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = {group: sorted(p.stem for p in (CONF / group).glob("*.yaml")) for group in (*config.GROUPS, "experiment")}
CELLS = {"demo": 36, "chunking_eval": 24, "mtrag_un": 24, "clapnq": 36, "onnx": 8, "rerankers": 24, "conditional": 10}
SEARCHES = ("search",)
OWN = {"function": "math.sqrt"}  # what stands for a value that only a person can give


def needs(group: str, choice: str) -> list[str]:
    """Overrides for what a choice leaves open (`???`)."""
    node = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text(encoding="utf-8")) or {}
    needed = [key for key, value in node.items() if value == "???"]
    # Files are named, or the folder that holds them: the choice for own files needs one of the two.
    needed += ["folder"] if node.get("folder") == "" else []
    return [f"{group}.{key}={OWN.get(key, 'somewhere')}" for key in needed]


def jobs_of(*overrides: str, mode: composing.Mode = "sweep") -> list[composing.Job]:
    args = app.parse(overrides)
    with app.application(args, args.overrides) as application:
        return app.compose_jobs(application, mode)[0]


def test_conf_is_found_and_is_the_folder_of_the_source_tree() -> None:
    assert composing.conf_dir() == CONF


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [e for e in GROUPS["experiment"] if e not in SEARCHES])
def test_every_cell_of_every_experiment_composes(experiment: str) -> None:
    jobs = jobs_of(f"+experiment={experiment}")
    assert len(jobs) == CELLS[experiment]
    assert len({job.name for job in jobs}) == len(jobs)
    baselines = {job.cell.plan.baseline for job in jobs}
    assert baselines <= {job.name for job in jobs}, "the declared baseline is one of the cells"
    keys = {job.cell.key("d", "c") for job in jobs}
    assert len(keys) == len(jobs), "no two cells are the same configuration"


@pytest.mark.parametrize("experiment", GROUPS["experiment"])
def test_experiments_open_with_the_command_that_runs_them(experiment: str) -> None:
    lines = (CONF / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8").splitlines()
    # Hydra reads its own directive from the first line only; the command is the first line for people.
    assert lines[0] == "# @package _global_"
    assert lines[1] == f"# denominator sweep +experiment={experiment}"


@pytest.mark.parametrize("choice", [f"{g}={c}" for g in config.GROUPS for c in GROUPS[g]])
def test_every_choice_builds(choice: str) -> None:
    group, _, name = choice.partition("=")
    (job,) = jobs_of(choice, *needs(group, name), mode="run")
    assert job.params[group] == composing.kind_of(name)


def choices_by_target() -> dict[str, str]:
    """One choice for each class that the configuration names."""
    found: dict[str, str] = {}
    for group in config.GROUPS:
        for name in GROUPS[group]:
            node = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8")) or {}
            found.setdefault(node.get("_target_", ""), f"{group}={name}")
    return {target: choice for target, choice in found.items() if target}


@pytest.mark.parametrize(("target", "choice"), choices_by_target().items())
def test_every_setting_of_a_part_can_be_set_though_its_yaml_does_not_list_it(target: str, choice: str) -> None:
    group = choice.partition("=")[0]
    settings = list(config.settings_of(target))
    args = app.parse([choice, *(f"{group}.{setting}=1" for setting in settings)])
    with app.application(args, args.overrides) as made:
        cfg = composing.compose_master(made, RunMode.RUN)
    assert [cfg[group][setting] for setting in settings] == [1] * len(settings)


@pytest.mark.parametrize(
    ("choices", "setting"),
    [
        (["embedder=own", "embedder.function=math.sqrt", "chunker=none"], "embedder.max_wait=5"),
        (["embedder=openai"], "embedder.headers={a:b}"),
        (["chunker=recursive_128"], "chunker.overlap=16"),
        (["embedder=hybrid"], "embedder.dense={_target_:denominator.embedders.Static,dimensions:64}"),
        (["reranker=mix_mmr"], "reranker.last={_target_:denominator.rerankers.MaxSim}"),
    ],
)
def test_a_setting_that_the_yaml_does_not_list_needs_no_plus(choices: list[str], setting: str) -> None:
    (without,), (plus,), (default,) = jobs_of(*choices, setting), jobs_of(*choices, f"+{setting}"), jobs_of(*choices)
    assert (without.name, without.params) == (plus.name, plus.params)
    assert without.cell.key("d", "c") == plus.cell.key("d", "c")
    parts = [(job.cell.chunker, job.cell.embedder, job.cell.reranker) for job in (without, plus, default)]
    assert parts[0] == parts[1] != parts[2]


def test_a_setting_of_the_part_inside_a_part() -> None:
    """The part that a field holds by default is written out, with one setting changed; grids over it, too."""
    grid = ("embedder=hybrid", "embedder.lexical.k1=0.5,1.5", "reranker=mix", "reranker.dense.dimensions=64")
    few, many = jobs_of(*grid)
    assert (few.cell.embedder, many.cell.embedder) == (Hybrid(lexical=BM25(k1=0.5)), Hybrid(lexical=BM25(k1=1.5)))
    assert many.cell.reranker == Mix(dense=Static(dimensions=64))


@pytest.mark.parametrize("group", config.GROUPS)
def test_every_yaml_says_what_it_is_and_names_real_parameters(group: str) -> None:
    for name in GROUPS[group]:
        text = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8")
        assert text.startswith("# "), f"{group}/{name} does not say what it is"
        node = yaml.safe_load(text)
        assert node is None or str(node["_target_"]).startswith("denominator.")


def test_the_plan_is_all_in_the_configuration() -> None:
    root = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    named = {f.name for f in fields(Plan)} - {"evaluate"}
    own = {"out", "tracking", "objective", "fail_fast", "force", "defaults", "hydra"}
    assert set(root) == named | own
    defaults = Plan()
    made = config.make_plan({k: v for k, v in root.items() if k in named})
    assert made == defaults


# ------------------------------------------------------------------ names of cells and parameters


def test_names_and_parameters_of_cells() -> None:
    jobs = jobs_of("chunker=fixed_128,sentences_128", "embedder=bm25,static", "pool=50,100", "chunker.size=64")
    assert len(jobs) == 8
    assert jobs[0].name == "fixed_128 size=64 · bm25 · none · pool=50"
    assert jobs[0].params["chunker"] == "fixed"
    assert jobs[0].params["chunker.size"] == 64
    assert jobs[-1].params["chunker"] == "sentences"
    assert jobs[-1].cell.plan.pool == 100
    assert all(job.cell.chunker_varies for job in jobs)
    alone = jobs_of("embedder=bm25,static")
    assert [job.name for job in alone] == ["fixed_128 · bm25 · none", "fixed_128 · static · none"]
    assert not any(job.cell.chunker_varies for job in alone)


def test_the_command_line_wins_over_an_experiments_grid() -> None:
    jobs = jobs_of("+experiment=demo", "chunker=whole", "reranker=none,mix")
    assert [job.name for job in jobs] == [
        f"whole · {e} · {r}" for e in ("bm25", "static", "hybrid") for r in ("none", "mix")
    ]


@pytest.mark.parametrize("text", ["fixed_128/bm25/none", "fixed_128 · bm25 · none", "fixed_128|bm25|none"])
def test_a_baseline_may_be_typed_plainly(text: str) -> None:
    (job,) = jobs_of(f"baseline='{text}'", mode="run")
    assert job.cell.plan.baseline == "fixed_128 · bm25 · none"


def test_ranges_and_globs_are_hydras() -> None:
    assert len(jobs_of("chunker=glob(sentences_*)")) == 2
    assert [j.params["chunker.size"] for j in jobs_of("chunker.size=range(50,80,10)")] == [50, 60, 70]


# ------------------------------------------------------------------ refusals, before any work

BAD: list[tuple[list[str], type[Exception], str]] = [
    (["chunkr=words"], ConfigError, r"chunkr: there is no such setting; did you mean 'chunker'\?"),
    (["chunker=fixd_128"], ConfigError, r"no choice 'fixd_128'; did you mean 'fixed_128'\?"),
    (["chunker=fixed_128,fixd_128"], ConfigError, r"did you mean 'fixed_128'\?"),
    (["chunker.sise=3"], ConfigError, r"chunker has no setting 'sise'; did you mean 'size'\?"),
    (["embedder=own", "embedder.max_wiat=5"], ConfigError, r"'max_wiat'; did you mean 'max_wait'\?"),
    (["embedder=hybrid", "embedder.lexical.k7=5"], ConfigError, r"lexical has no setting 'k7' \(it has: k1, b, lang"),
    (["embedder=hybrid", "embedder.k.x=5"], ConfigError, r"embedder\.k has no settings"),
    (["embedder=openai", "embedder.headers.x=5", "chunker=none"], ConfigError, r"embedder\.headers"),
    (["+chunker.sise=3"], ConfigError, r"chunker\.sise: Fixed has no setting 'sise'; did you mean 'size'\?"),
    (["+chunkr=3"], ConfigError, r"chunkr: there is no such setting; did you mean 'chunker'\?"),
    (["experiment=demo"], ConfigError, r"write \+experiment=… with a plus"),
    (["+experiment=demmo"], ConfigError, r"did you mean 'demo'\?"),
    (["ks=abc"], ConfigError, r"ks: found 'abc', expected a list of whole numbers"),
    (["ks=[1,x]"], ConfigError, r"expected a list of whole numbers"),
    (["pool=1.5"], ConfigError, r"pool: found 1\.5, expected a whole number"),
    (["pool=true"], ConfigError, r"pool: found True, expected a whole number"),
    (["ks=[0]"], MeasurementError, r"\[bad_k\]"),
    (["ks=[]"], MeasurementError, r"\[bad_k\]"),
    (["ks=[5,5]"], MeasurementError, r"\[bad_k\] ks names a K twice"),
    (["ks=[1,500]"], MeasurementError, r"\[depth_below_k\] .* pool=500"),
    (["pool=5", "ks=[1,10]"], MeasurementError, r"\[depth_below_k\]"),
    (["budget=0"], MeasurementError, r"\[bad_budget\]"),
    (["alpha=2"], ConfigError, r"alpha: found 2\.0, expected a number between 0 and 1"),
    (["seed=-1"], ConfigError, r"seed: found -1"),
    (["resamples=3"], ConfigError, r"resamples: found 3, expected at least 100"),
    (["eligibility=lenien"], ConfigError, r"expected one of strict, lenient; did you mean 'lenient'\?"),
    (["headline=recal@5"], ConfigError, r"did you mean 'recall@5'\?"),
    (["headline=recall@7"], ConfigError, r"'recall@7' needs ks=\[1, 3, 5, 10, 7\]"),
    (["headline=coverage@b500"], ConfigError, r"needs budget=500"),
    (["chunker.size=0"], ConfigError, r"size must be at least 1, found size 0"),
    (["chunker.overlap=200"], ConfigError, r"overlap 200 must be below size 128"),
    (["chunker.size=abc"], ConfigError, r"chunker\.size: found 'abc', expected a whole number"),
    (["embedder._target_=nope.X"], ConfigError, r"cannot import 'nope\.X'"),
    (["embedder._target_=denominator.embedders.BM52"], ConfigError, r"has no 'BM52'; did you mean 'BM25'\?"),
    (["embedder._target_=denominator.chunkers.Fixed", "~embedder.k1", "~embedder.b", "~embedder.language",
      "~embedder.stopwords"], ConfigError, r"Fixed has no method open\(\), so it cannot be a embedder"),
    (["dataset=native"], ConfigError, r"a data set needs questions=FILE"),
    (["tracking.urri=x"], ConfigError, r"did you mean 'uri'\?"),
    (["embedder=bm25,static", "baseline=fixd_128/bm25/none"], ConfigError, r"baseline: .* did you mean 'fixed_128'\?"),
    (["fail_fast=maybe"], ConfigError, r"fail_fast: found 'maybe', expected true or false"),
    (["chunker.size=[1"], ConfigError, r"chunker\.size"),
    (["chunker"], ConfigError, r"missing EQUAL"),
    (["seed=${oc.env:NO_SUCH_VARIABLE_HERE}"], ConfigError, r"NO_SUCH_VARIABLE_HERE"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "error", "message"), BAD, ids=[" ".join(b[0])[:60] for b in BAD])
def test_bad_overrides_are_refused_with_the_near_name(
    overrides: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        jobs_of(*overrides)
    assert caught.value.exit_code == 64  # type: ignore[attr-defined]


def test_one_bad_cell_of_a_grid_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        jobs_of("chunker.size=64,16", "embedder=bm25,static")
    assert caught.value.__notes__ == ["in the cell chunker.size=16 embedder=bm25"]


def test_k_chunks_are_not_compared_across_chunkers() -> None:
    with pytest.raises(MeasurementError, match="level_not_comparable"):
        jobs_of("chunker=fixed_128,sentences_128", "headline=chunk_recall@5")
    assert len(jobs_of("embedder=bm25,static", "headline=coverage@5")) == 2
    assert len(jobs_of("chunker=fixed_128,sentences_128", "headline=recall@5")) == 2


def test_a_launcher_inside_a_swept_experiment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    head = "# @package _global_\ndefaults:\n  - override /hydra/launcher: "
    (tmp_path / "experiment" / "a.yaml").write_text(head + "joblib\n", encoding="utf-8")
    (tmp_path / "experiment" / "b.yaml").write_text(head + "basic\n", encoding="utf-8")
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    with pytest.raises(ConfigError, match="hydra/launcher"):
        jobs_of(f"--config-dir={tmp_path}", "+experiment=a,b")


def test_a_folder_of_ones_own_configurations(tmp_path: Path) -> None:
    (tmp_path / "chunker").mkdir()
    text = "_target_: tests.test_conf.Mine\nsize: 7\nnames: [a, b]\n"
    (tmp_path / "chunker" / "mine_7.yaml").write_text(text, encoding="utf-8")
    jobs = jobs_of(f"--config-dir={tmp_path}", "chunker=mine_7,fixed_128")
    assert jobs[0].cell.chunker == Mine(7, ("a", "b"))
    assert jobs[0].params["chunker._target_"] == "tests.test_conf.Mine"
    with pytest.raises(ConfigError, match="--config-dir"):
        jobs_of("--config-dir=/no/such/folder", "chunker=fixed_128")


# ------------------------------------------------------------------ the checker itself


@dataclass(frozen=True)
class Mine:
    """A user's own chunker: no base class, no registry."""

    size: int
    names: tuple[str, ...] = ()
    how: Literal["fast", "slow"] = "fast"
    share: float = 0.5
    more: Mapping[str, int] | None = None
    pair: tuple[int, str] | None = None

    def chunk(self, document: Any) -> Sequence[Any]:
        return []


def target(**given: Any) -> dict[str, Any]:
    return {"_target_": "tests.test_conf.Mine", "size": 1, **given}


def test_values_are_converted_only_where_nothing_is_lost() -> None:
    made = config.build(target(names=["a"], share=1, more={"x": 1}, pair=[1, "b"]), "chunker")
    assert made == Mine(1, ("a",), share=1.0, more={"x": 1}, pair=(1, "b"))
    assert isinstance(made.share, float)
    assert isinstance(made.names, tuple)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 1.0}, r"part\.size: found 1\.0, expected a whole number"),
        ({"size": True}, r"part\.size: found True"),
        ({"names": "ab"}, r"part\.names: found 'ab', expected a list of texts"),
        ({"names": [1]}, r"part\.names"),
        ({"how": "fst"}, r"expected one of fast, slow; did you mean 'fast'\?"),
        ({"more": [1]}, r"part\.more: found \[1\], expected a mapping or null"),
        ({"pair": [1]}, r"part\.pair"),
        ({"_args_": [1]}, r"only _target_ and _partial_"),
        ({"name": "x"}, r"did you mean 'names'\?"),
    ],
)
def test_wrong_values_say_what_was_found_and_wanted(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build(target(**given), "part")


def test_missing_settings_and_refusals_of_a_constructor_are_named() -> None:
    with pytest.raises(ConfigError, match=r"part: Mine needs size, for example part\.size=…"):
        config.build({"_target_": "tests.test_conf.Mine"}, "part")
    with pytest.raises(ConfigError, match=r"part: Fraction refused its settings: ZeroDivisionError"):
        config.build({"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0}, "part")
    with pytest.raises(ConfigError, match="no _target_"):
        config.build({"size": 1}, "part")


def test_variables_of_a_node_are_not_passed_on() -> None:
    raw = {"_target_": "tests.test_conf.Mine", "size": 1, "base": "x", "names": ["y"], "how": "${.base}"}
    with pytest.raises(ConfigError, match="has no setting 'base'"):
        config.build({**raw, "how": "fast"}, "part", {**raw, "how": "fast"})
    assert config.build({**raw, "how": "fast"}, "part", raw) == Mine(1, ("y",))


def test_secrets_do_not_show_in_refusals() -> None:
    with pytest.raises(ConfigError) as caught:
        config.convert(int, "S3CRET-7", "embedder.api_key")
    assert "S3CRET-7" not in str(caught.value)
