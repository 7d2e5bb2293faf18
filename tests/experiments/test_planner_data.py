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
