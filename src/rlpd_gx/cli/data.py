"""`rlpd-gx data`: offline datasets in and out."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rlpd_gx.cli.arguments import Argument, EnvKwargs, EnvWrappers, Option, read_env_kwargs
from rlpd_gx.errors import GxError

Source = Annotated[Path, Argument(help="A file or folder in any known format.")]
Format = Annotated[
    str | None, Option(help="Name of a format, or module:name of your own; where it is not recognised.")
]
Mapping = Annotated[
    Path | None, Option(help='JSON file: {"observations": ["x", "v"], "actions": "force", ...}.')
]
Observation = Annotated[str | None, Option(help="For action logs: objects, cells, ram, pixels or both.")]
Where = Annotated[list[str] | None, Option(help='Keep some steps: "behaviour_iteration <= 20".')]
Env = Annotated[str | None, Option(help="The environment the data must fit, checked against its spaces.")]
Clip = Annotated[bool, Option(help="Bring actions into the environment's range.")]
TimeLimit = Annotated[int | None, Option(min=1, help="Terminals at this length are time limits.")]


def convert(
    source: Source,
    out: Annotated[Path | None, Option(help="A new folder; without it, the cache.")] = None,
    format: Format = None,
    mapping: Mapping = None,
    observation: Observation = None,
    where: Where = None,
    env: Env = None,
    env_kwargs: EnvKwargs = "{}",
    env_wrappers: EnvWrappers = None,
    clip_actions: Clip = False,
    time_limit: TimeLimit = None,
    rules: Annotated[
        str | None, Option(help="Store the safe sets of these rules: module:name of a rule or a list.")
    ] = None,
    state: Annotated[
        str | None,
        Option(help="module:callable, stored observations [k, ...] -> what the rules read."),
    ] = None,
    offline_safe_sets: Annotated[
        Literal["error", "assume-all", "drop"] | None,
        Option(
            help="Where the rules cannot read the stored state: stop, allow every action, or drop the rows. "
            "Default: error."
        ),
    ] = None,
) -> None:
    """Convert a dataset, so that it opens immediately from then on."""
    if where and out is None:
        raise GxError("the cache holds whole datasets; give --out, a folder for the steps that --where keeps")
    if rules is not None and out is None:
        raise GxError(
            "the cache holds datasets without rules; give --out, a folder for the one with safe sets"
        )
    if rules is None and (state or offline_safe_sets):
        raise GxError("--state and --offline-safe-sets define how rules read the data; give --rules")
    kwargs, more = read_env_kwargs(env_kwargs, env_wrappers), {}
    if rules is not None and state is None:
        from rlpd_gx.loop.offline_rules import while_replayed

        more["live_safe_sets"] = while_replayed(source, format, rules, env, env_kwargs=kwargs)
    data = _load(source, format, mapping, observation, where, env, kwargs, clip_actions, time_limit, **more)
    if rules is not None:
        from rlpd_gx.loop.offline_rules import with_rules

        data = with_rules(data, rules, state, offline_safe_sets or "error", env, env_kwargs=kwargs)
    folder = data.save(out) if out is not None else data.folder
    for finding in data.findings:
        print(f"note: {finding}", file=sys.stderr)
    print(f"{data.steps} steps in {data.episodes} episodes in {folder}")


def audit(
    source: Source,
    format: Format = None,
    mapping: Mapping = None,
    observation: Observation = None,
    where: Where = None,
    env: Env = None,
    env_kwargs: EnvKwargs = "{}",
    env_wrappers: EnvWrappers = None,
    time_limit: TimeLimit = None,
    json_: Annotated[bool, Option(help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what is in a dataset, and everything that looks wrong."""
    from rich.console import Console

    from rlpd_gx.replay.offline import audit as audit_module
    from rlpd_gx.replay.offline.audit import as_table

    # Bad values are to be seen, not refused; such data must not reach the cache.
    with tempfile.TemporaryDirectory() as folder:
        data = _load(
            source,
            format,
            mapping,
            observation,
            where,
            env,
            read_env_kwargs(env_kwargs, env_wrappers),
            False,
            time_limit,
            strict=False,
            root=Path(folder),
        )
        report = audit_module(replace(data, name=source.resolve().name))  # a folder keeps its source's name
    if json_:
        print(json.dumps(report))
    else:
        Console().print(as_table(report))


def list_() -> None:
    """The datasets in the cache."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from rlpd_gx.replay.offline import cache

    root = cache.cache_root()
    folders = sorted(entry for entry in root.iterdir() if cache.is_dataset(entry)) if root.is_dir() else []
    if not folders:
        print(f"no dataset is in the cache ({root})")
        return
    table = Table("name", "format", "environment", "rows", "MB", "safe sets", "folder")
    for folder in folders:
        try:
            meta = cache.read_meta(folder)
        except GxError as error:  # of an older version, or damaged: the others are still there
            print(f"note: {error}", file=sys.stderr)
            continue
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        sets = str(len(list(folder.glob("safe_set-*.npy"))) + ("safe_set" in meta["columns"]))
        known = (meta["name"], meta["format"], meta["env_id"] or "", str(meta["rows"]), f"{size:.1f}", sets)
        table.add_row(*map(escape, known), folder.name)
    Console().print(table)
    print(f"in {root}")


def _load(
    source: Path,
    format: str | None,
    mapping: Path | None,
    observation: str | None,
    where: list[str] | None,
    env: str | None,
    env_kwargs: dict[str, Any],
    clip_actions: bool,
    time_limit: int | None,
    **more: Any,
) -> Any:
    from rlpd_gx.envs.description import stored_as
    from rlpd_gx.replay.offline import ActionRange, formats, load
    from rlpd_gx.replay.offline.cache import is_dataset

    options: dict[str, Any] = {}
    if mapping is not None:
        options["mapping"] = _mapping(mapping)
    if observation is not None:
        options["observation"] = observation
    name, actions, made = format, None, None
    if not is_dataset(source):
        name = format or formats.detect(source)
        if env is None:  # the file may name its environment, which has the range of actions
            told = formats.read(source, name, options)
            env_id = told.env_id if told.actions is None else None
            if env_id and ":" in env_id:  # would import whatever module a file names
                env_id = None
        else:
            env_id = env
        if env_id is not None:
            made = _made(env_id, env_kwargs, required=env is not None)
            actions = ActionRange.of_space(made.action_space) if made else None
    elif env is not None:
        made = _made(env, env_kwargs, required=True)
        actions = ActionRange.of_space(made.action_space)
    data = load(
        source,
        format=name,
        options=options,
        where=where or (),
        actions=actions,
        clip_actions=clip_actions,
        time_limit_steps=time_limit,
        **more,
    )
    if env is not None and made is not None:
        data.check_environment(*stored_as(env, made.observation_space), made.action_space)
    return data


def _made(env_id: str, env_kwargs: dict[str, Any], required: bool) -> Any:
    try:
        from rlpd_gx.envs.making import make

        return make(env_id, **env_kwargs)
    except GxError as error:
        if required:
            raise
        print(f"note: the range of actions is not checked: {error}", file=sys.stderr)
        return None


def _mapping(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        raise GxError(f"{file}: there is no such mapping; check the path") from None
    except (OSError, ValueError) as error:
        raise GxError(f"{file}: the mapping cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise GxError(f'{file}: a mapping is a JSON object, like {{"rewards": "r"}}')
    return value
