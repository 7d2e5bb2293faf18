"""Parts of a collection become one log of a game, and are neither lost nor added twice."""

import gzip
import json

from rlpd_gx.experiments import planner_data


def write_part(folder, game, part, rewards):
    episode = {
        "seed": part,
        "ale_actions": [0] * len(rewards),
        "rewards": rewards,
        "lives": [3] * len(rewards),
    }
    log = {
        "env_id": f"ALE/{game}-v5",
        "kwargs": {},
        "episodes": [episode],
        "simulated_steps": 7 * len(rewards),
    }
    (folder / f"{game}-{part}.json.gz").write_bytes(gzip.compress(json.dumps(log).encode()))


def test_later_parts_are_added_to_a_log_that_has_the_earlier_ones(tmp_path):
    parts, joined = tmp_path / "parts", tmp_path / "joined"
    parts.mkdir()
    joined.mkdir()
    write_part(parts, "Pong", 0, [1.0, 0.0])
    planner_data.join(parts, joined)
    (parts / "Pong-0.json.gz").unlink()  # whoever continues elsewhere only has the log
    write_part(parts, "Pong", 2, [0.0, 0.0, 2.0])
    for _ in range(2):
        planner_data.join(parts, joined)
        log = planner_data.read(joined / "Pong.json.gz")
        assert [(p["seed"], p["steps"], p["score"], p["simulated_steps"]) for p in log["parts"]] == [
            (100, 2, 1, 14),
            (102, 3, 2, 21),
        ]
        assert [episode["seed"] for episode in log["episodes"]] == [0, 2]
    assert [path.name for path in joined.iterdir()] == ["Pong.json.gz"]  # no log without a part


def test_parts_are_collected_side_by_side_and_only_once(tmp_path, monkeypatch):
    monkeypatch.setattr(planner_data, "GAMES", ("Pong", "Freeway", "Boxing"))
    monkeypatch.setattr(planner_data, "PARTS", (12,))
    monkeypatch.setattr(planner_data, "SEED", 900)  # of no part in the package
    write_part(tmp_path, "Boxing", 0, [5.0])
    planner_data.collect(tmp_path, jobs=2)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(made) == ["Boxing-0.json.gz", "Freeway-0.json.gz", "Pong-0.json.gz"]
    steps = {
        name: sum(len(e["ale_actions"]) for e in planner_data.read(tmp_path / name)["episodes"])
        for name in made
    }
    assert steps == {"Boxing-0.json.gz": 1, "Freeway-0.json.gz": 12, "Pong-0.json.gz": 12}
    planner_data.collect(tmp_path, jobs=2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == made
