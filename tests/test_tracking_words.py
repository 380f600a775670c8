"""W&B groups, filters and averages by words that mean what they say."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_folders import config_of, make_record, make_run, planned

from transformer_norms.files import read_json
from transformer_norms.tracking.description import described, questions

pytestmark = pytest.mark.area("trust")

PRE, POST = {"placement": "pre"}, {"placement": "post"}


def words(folder: Path) -> dict[str, Any]:
    return described(folder, read_json(folder / "summary.json"))


def typed(study: Path, overrides: list[str], seed: int = 0, **keys: Any) -> Path:
    return make_run(study, config_of(overrides, seed, **keys), 2.0)


def test_the_seeds_of_a_variant_share_its_name_and_no_other_run_does(tmp_path: Path) -> None:
    first, second = (typed(tmp_path, ["placement=pre"], seed) for seed in (0, 1))
    others = [
        typed(tmp_path, ["placement=post"]),
        typed(tmp_path, ["placement=pre"], optimizer__lr=1e-2),
        typed(tmp_path, ["placement=pre", "data.seed=5"]),
    ]
    configs = [words(folder)["config"] for folder in (first, second, *others)]
    names = [config["variant"] for config in configs]
    assert names[0] == names[1]
    assert len(set(names)) == 4
    assert names[0].startswith("pre-")
    assert [config["seed"] for config in configs[:2]] == [0, 1]


def test_what_a_sweep_planned_has_its_label_its_stage_and_its_question(tmp_path: Path) -> None:
    pre = [config_of(["placement=pre"], seed) for seed in (0, 1, 100)]
    stages = ("result", "result", "tune")
    runs = [
        planned(config, PRE | {"model.depth": 2}, stage)
        for config, stage in zip(pre, stages, strict=True)
    ]
    make_record(tmp_path, runs)
    found = [words(make_run(tmp_path, config, 2.0)) for config in pre]
    assert {one["config"]["variant"] for one in found} == {"pre depth=2"}
    assert [one["job_type"] for one in found] == list(stages)
    assert [one["config"]["stage"] for one in found] == list(stages)
    assert {one["notes"] for one in found} == {"Which placement?"}
    beside = words(typed(tmp_path, ["placement=post"]))
    assert (beside["job_type"], beside["notes"]) == ("train", None)
    assert questions(tmp_path) == "Which placement?"


def test_a_later_attempt_is_what_the_first_was_planned_for(tmp_path: Path) -> None:
    config = config_of(["placement=pre"])
    make_record(tmp_path, [planned(config, PRE)])
    make_run(tmp_path, config, 2.0)
    again = words(make_run(tmp_path, config, 2.0, attempt=2))
    assert (again["job_type"], again["config"]["variant"]) == ("result", "pre")
    config = config_of(["placement=post"])
    first, again = (words(make_run(tmp_path, config, 2.0, attempt=n)) for n in (1, 2))
    assert first["config"]["variant"] == again["config"]["variant"]


def test_a_broken_record_hides_neither_its_run_nor_another_record(tmp_path: Path) -> None:
    config = config_of(["placement=pre"])
    folder = make_run(tmp_path, config, 2.0)
    (tmp_path / "sweep-a.json").write_text('{"runs": 5')
    assert words(folder)["job_type"] == "train"
    make_record(tmp_path, [planned(config, PRE)], name="b")
    (tmp_path / "sweep-c.json").mkdir()
    assert words(folder)["job_type"] == "result"


def test_a_result_of_one_sweep_is_one_although_another_tuned_there(tmp_path: Path) -> None:
    config = config_of(["placement=pre"])
    make_record(tmp_path, [planned(config, PRE, "tune")], name="a")
    make_record(tmp_path, [planned(config, POST)], name="b")
    assert words(make_run(tmp_path, config, 2.0))["job_type"] == "result"


def test_the_choices_stand_beside_the_whole_config(tmp_path: Path) -> None:
    config = config_of(["placement=pre"])
    found = words(make_run(tmp_path, config, 2.0))
    assert found["config"]["choices"] == config["choices"]
    assert found["config"]["placement"] == config["placement"]
    assert {"norm=rmsnorm", "placement=pre"} <= set(found["tags"])
    assert (found["config"]["commit"], len(found["config"]["identity"])) == ("c" * 40, 16)


def test_a_folder_without_a_readable_config_is_described_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "rmsnorm-pre-s3-0123abcd"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: [")
    assert described(folder, {})["config"]["variant"] == "rmsnorm-pre"
    (folder / "config.yaml").write_text(json.dumps({"seed": 3}))
    assert described(folder, {})["config"]["variant"] == "rmsnorm-pre"
