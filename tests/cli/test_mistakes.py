"""Every mistake is answered with one sentence that names what exists in that command, and exit code 2."""

import json
import subprocess
import sys

import pytest
from users_folder import command_lines, fill

TINY = [
    "--utd=1",
    "--batch-size=8",
    "--hidden-sizes=8",
    "--ensemble-size=2",
    "--learning-starts=8",
    "--steps=20",
]
DRONE, GUARDED = ["train", "--env=drone:Drone"], ["train", "--env=drone:Drone", "--rules=my_rules:power"]
TRY = ["guard", "--env=drone:Drone", "--episodes=1"]
MISTAKES = {
    # what is typed -> what the sentence says
    ("trian",): "there is no command 'trian'; did you mean train?",
    ("gaurd", "--env=x"): "there is no command 'gaurd'; did you mean guard?",
    (*TRY, "--rules=my_rules:power", "--policy=nowhere"): "--policy nowhere: there is no such folder",
    ("data", "audti"): "did you mean data audit?",
    ("train",): "name the environment, for example --env Hopper-v5",
    ("train", "--utdd=3"): "rlpd-gx train has no flag --utdd; did you mean --utd?",
    ("train", "Hopper-v5"): "rlpd-gx train has no argument Hopper-v5",
    ("train", "--env=NoSuch-v0"): "--env NoSuch-v0",
    ("train", "--env=Atari/NoSuch-ram"): "NoSuch",
    ("train", "--env=Atari/Pong"): "Atari/GAME-ram",
    ("train", "--env=drone:Dron"): "did you mean Drone?",
    ("train", "--env=dron:Drone"): "there is no module 'dron' in this folder or installed; did you mean drone?",
    ("train", "--env=drone.py:Drone"): "write it as a module, drone:Drone",
    ("train", "--env=drone:not_an_environment"): "it has Drone, Crashing, Dials, Drone-v0, NamedDrone-v0",
    ("train", "--env=drone:Crashing"): "--env drone:Crashing raised RuntimeError: no battery (drone.py, line 27)",
    (*DRONE, '--env-kwargs={"wnd": 1}'): "--env-kwargs {'wnd': 1} do not fit drone:Drone",
    (*DRONE, "--env-kwargs=[1]"): "--env-kwargs cannot be '[1]': give a JSON object",
    (*DRONE, "--env-kwargs=wind"): "--env-kwargs cannot be 'wind': give a JSON object",
    (*DRONE, "--rules=my_rules:powr"): "my_rules has no 'powr'; did you mean power?",
    (*DRONE, "--rules=my_rules.py:power"): "write it as a module, my_rules:power",
    (*DRONE, "--rules=my_rules"): "--rules takes module:name, not 'my_rules'",
    (*DRONE, "--rules=needs:rule"): "needs imports no_such_package, which is not installed",
    (*DRONE, "--rules=typo:rule"): "importing typo raised SyntaxError",
    (*DRONE, "--rules=miswatched:power"): "but the one given takes (observation, info); change its parameters",
    (*DRONE, "--guard=guardian"): "--guard guardian needs rules: give --rules",
    (*DRONE, "--compare"): "give --rules",
    (*DRONE, "--backup=project"): "backup",
    (*DRONE, "--warm-start-updates=5"): "give --offline",
    (*GUARDED, "--guard=gaurdian"): "there is no guard 'gaurdian'",
    (*GUARDED, "--rules-state=my_rules:angle"): "--rules-state my_rules:angle",
    (*GUARDED, "--offline=missing.hdf5"): "--offline missing.hdf5: there is no such file or folder",
    (*GUARDED, "--offline=flights.npz", "--offline-state=my_rules:angle"): "--offline-state my_rules:angle",
    (*GUARDED, "--rules=my_rules:pair"): "give --rules once, not 2 times; name a list of rules, or combine them with &",
    (*TRY, "--rules=my_rules:power", "--rules=my_rules:pair"): "give --rules once, not 2 times; name a list of rules",
    (*GUARDED, "--seed", "1", "--seed", "2", "--seed=3"): "give --seed once, not 3 times",
    (*GUARDED, "--normalise", "--no-normalise"): "give --normalise or --no-normalise once, not 2 times",
    ("collect", "--env=drone:Drone", "--out=a", "--out=b", "--steps=3"): "give --out once, not 2 times",
    ("data", "convert", "flights.npz", "--rules=a:b", "--rules=a:c"): "give --rules once, not 2 times",
    (*GUARDED, "--preset=best"): "there is no preset 'best'; there are rlpd-gx,",
    (*GUARDED, "--config=none.yaml"): "none.yaml: cannot be read",
    (*GUARDED, "--config=broken.yaml"): "broken.yaml: cannot be read as YAML: while parsing a flow sequence (line",
    (*GUARDED, "--config=unknown.yaml"): "unknown.yaml: there is no setting 'stepps'; did you mean steps?",
    (*GUARDED, "--config=wrong.yaml"): "wrong.yaml: steps cannot be 'many': give a whole number",
    (*GUARDED, "--config=preset.yaml"): "there is no preset ['rlpd']",
    (*GUARDED, "--config=null.yaml"): "null.yaml: guard cannot be None",
    (*GUARDED, "--config=list.json"): "list.json: must hold settings by name",
    (*GUARDED, "--config=settings.ini"): "a config is a .yaml, .toml or .json file",
    (*GUARDED, "--device=quantum"): "--device quantum cannot be used",
    (*GUARDED, "--steps=1.5"): "--steps cannot be '1.5': give a whole number",
    (*GUARDED, "--steps=-3"): "steps must be 0 or more, got -3",
    (*GUARDED, "--gamma=nan"): "--gamma cannot be 'nan': give a number",
    (*GUARDED, "--utd=0"): "utd must be",
    (*GUARDED, "--hidden-sizes=a,b"): "--hidden-sizes cannot be 'a,b'",
    (*GUARDED, "--sampler=best"): "--sampler cannot be 'best': choose uniform, stride",
    (*GUARDED, "--sampler=tree-backup"): "--sampler tree-backup needs discrete actions",
    (*GUARDED, "--target-subset=99"): "target_subset must be from 0",
    (*GUARDED, "--online-ratio=1.5"): "online_ratio must be in [0, 1]",
    (*GUARDED, "--out=drone.py"): "drone.py: cannot be made",
    (*DRONE, "--env-wrappers=drone:Nothing"): "--env-wrappers drone:Nothing: drone has no 'Nothing'",
    (*DRONE, "--env-wrappers=drone"): "--env-wrappers takes module:name, not 'drone'",
    (*DRONE, "--env-wrappers=drone:not_an_environment"): "raised TypeError: 'int' object is not callable",
    (*DRONE, "--env-wrappers=my_rules:np.array"): "my_rules has no 'np.array'",
    (*DRONE, "--track=mlflow"): "--track takes wandb or trackio, not 'mlflow'",
    (*DRONE, "--offline=process.csv"): "name it with `rlpd-gx data convert --mapping FILE`",
    ("train", "--env=drone:Dials", "--rules=my_rules:pair"): "returns a tuple with one mask for each component",
    ("train", "--env=drone:Dials", "--rules=my_rules:parts"): "one mask for each component, as a tuple",
    ("train", "--env=drone:Dials", "--rules=my_rules:power"): "only mask rules per component joined with &",
    ("train", "--from=nowhere@100"): "nowhere: holds no run",
    ("train", "--from=@100"): "--from takes RUN or RUN@STEP",
    ("train", "--from=nowhere@soon"): "--from takes RUN or RUN@STEP, such as runs/first@10000, not 'nowhere@soon'",
    ("train", "--from=nowhere", "--preset=sac"): "leave out --preset",
    ("train", "--from=nowhere", "--resume=nowhere"): "leave out --from",
    ("train", "--resume=nowhere"): "nowhere: holds no run",
    ("train", "--resume=nowhere", "--seed=3"): "leave out --seed",
    ("guard", "--env=drone:Drone"): "--rules",
    (*TRY, "--rules=miswatched:power"): "unsafe_event is called with (observation, reward, terminated, trunc",
    (*TRY, "--rules=my_rules:power", "--seed=-1"): "--seed: must be at least 0, got -1",
    (*TRY[:-1], "--rules=my_rules:power", "--episodes=0"): "--episodes: must be at least 1, got 0",
    (*TRY[:-1], "--rules=my_rules:power", "--episodes=x"): "--episodes: give a whole number, not 'x'",
    (*TRY, "--rules=my_rules:power", "--state=my_rules:angle"): "--state my_rules:angle",
    (*TRY, "--rules=my_rules:power", '--env-kwargs={"wnd": 1}'): "do not fit drone:Drone",
    ("guard", "--env=ALE/Breakout-v5", "--rules=rlpd_gx.envs.atari:Lookahead"): "--env Atari/Breakout-ram",
    (*TRY, "--rules=my_rules:power", "--env-wrappers=wrapper:Half"): "there is no module 'wrapper'",
    (*TRY, "--rules=my_rules:power", "--policy=my_rules:power"): "--policy my_rules:power is a Atom",
    ("collect", "--env=drone:Drone", "--out=flights", "--steps=3", "--env-wrappers=drone:Drne"): "did you mean Drone?",
    ("data", "audit", "flights.npz", "--env=drone:Drone", "--env-wrappers=x"): "--env-wrappers takes module:name",
    ("data", "convert", "process.csv"): "name it with `rlpd-gx data convert --mapping FILE`",
    ("data", "convert", "process.csv", "--mapping=typo.py"): "typo.py: the mapping cannot be read as JSON",
    ("collect", "--env=drone:Drone", "--out=flights"): "--episodes or --steps",
    ("collect", "--env=drone:Drone", "--out=flights", "--epsilon=2"): "--epsilon: must be at most 1, got 2",
    ("data", "convert", "missing.npz"): "missing.npz",
    ("data", "convert", "flights.npz", "--env=drone:Dron"): "did you mean Drone?",
    ("data", "convert", "flights.npz", "--out=sets", "--env=drone:Drone", "--rules=my_rules:power",
     "--state=my_rules:angle"): "--state my_rules:angle",
    ("theory", "solve"): "required: FILE",
    ("evaluate", "nowhere"): "nowhere: holds no run",
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The answer to each mistake, given by one process in the user's folder."""
    folder = tmp_path_factory.mktemp("user")
    fill(folder)
    lines = [
        [
            "train",
            *(flag for flag in TINY if f"{flag.partition('=')[0]}=" not in "\n".join(words)),
            *words[1:],
        ]
        if words[0] == "train" and "nowhere" not in " ".join(words)
        else list(words)
        for words in MISTAKES
    ]
    done = subprocess.run(
        [sys.executable, "answers.py", command_lines(lines)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "runs").exists()
    return dict(zip(MISTAKES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_sentence_and_exit_code_2(answers, words):
    code, error = answers[words]
    assert code == 2, error
    assert MISTAKES[words] in error
    assert error.startswith("rlpd-gx: ")
    assert len(error.strip().splitlines()) == 1


def test_no_traceback_when_the_command_is_alone(tmp_path):
    fill(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "rlpd_gx", "guard", "--env", "drone:Crashing", "--rules", "my_rules:power"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no battery (drone.py, line 27)" in done.stderr
