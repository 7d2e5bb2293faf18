"""From a preset, a guard and what a person says to a config."""

from collections.abc import Mapping
from typing import Any

from rlpd_gx import guards
from rlpd_gx.config import Config, Settings
from rlpd_gx.settings import preset_values, with_values


def configure(
    preset: str = "rlpd-gx", values: Mapping[str, Any] | None = None, source: str = "settings"
) -> Config:
    """The config of a run: `values` override the chosen guard, which overrides the preset.

    Without rules there is nothing to guard with: the run is unguarded.
    """
    chosen, values = preset_values(preset), dict(values or {})
    layers = [guards.find(chosen.get("guard", "guardian")).settings, chosen]
    if not values.get("rules", chosen.get("rules", "")):
        layers += [guards.find("none").settings, {"guard": "none"}, _cloning(chosen)]
    elif "guard" in values:
        layers += [guards.find(values["guard"]).settings, _cloning(chosen)]
    config = Config(preset=preset)
    for layer in layers:
        config = with_values(config, layer, f"preset {preset}")
    return with_values(config, values, source)


def reconfigure(config: Config, values: Mapping[str, Any], source: str) -> Config:
    """The config with some settings changed; another guard brings its own settings, as at the start."""
    guard = guards.find(values["guard"]).settings if "guard" in values else {}
    return with_values(with_values(config, guard, source), values, source)


def _cloning(preset: Mapping[str, Any]) -> Settings:
    """Cloning remains cloning under every guard."""
    return {"actor": "clone"} if preset.get("actor") == "clone" else {}
