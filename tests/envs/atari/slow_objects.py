"""The slow reference of objects and collisions: plain Python on the text of a table, thing by thing."""

import tomllib
from pathlib import Path

import numpy as np

from rlpd_gx.envs.atari.expressions import FUNCTIONS
from rlpd_gx.envs.atari.games import TABLES


class Table:
    def __init__(self, path):
        path = Path(path)
        self.content = tomllib.loads((path if path.suffix else TABLES / f"{path}.toml").read_text())

    def value(self, text, ram, was, i=0):
        """Evaluated by Python itself, names looked up as they come."""
        names = self.content.get("names", {})

        class Names(dict):
            def __missing__(inner, key):
                return eval(names[key], {}, inner)

        return eval(str(text), {}, Names(**FUNCTIONS, ram=ram.tolist(), was=was.tolist(), i=i, True_=True))

    def place(self, thing, ram, was, i=0):
        if not self.value(thing.get("present", "True"), ram, was, i):
            return None
        return self.value(thing["x"], ram, was, i), self.value(thing["y"], ram, was, i)

    def change(self, thing, ram, was, i=0):
        now, before = self.place(thing, ram, was, i), self.place(thing, was, was, i)
        if now is None or before is None:
            return 0.0, 0.0
        dx, dy = now[0] - before[0], now[1] - before[1]
        wrap = thing.get("wrap", 0)
        if wrap and dx > wrap / 2:
            dx -= wrap
        if wrap and dx < -wrap / 2:
            dx += wrap
        return (dx, dy) if abs(dx) <= 32 and abs(dy) <= 32 else (0.0, 0.0)

    def still(self, thing):
        text = f"{thing['x']} {thing['y']}"
        for name, meaning in self.content.get("names", {}).items():
            text = text.replace(name, str(meaning))
        return "ram" not in text and "was" not in text

    def observation(self, ram, was):
        """name -> number."""
        found = {}
        player = self.content["player"]
        here = self.place(player, ram, was)
        found["player present"] = float(here is not None)
        for axis, size in ((0, 160), (1, 210)):
            letter = "xy"[axis]
            found[f"player {letter}"] = 0 if here is None else here[axis] / size
            found[f"player change {letter}"] = self.change(player, ram, was)[axis] / 16
        for thing in self.content.get("things", ()):
            count = thing.get("count", 1)
            if self.still(thing):
                self._still(found, thing, count, here, ram, was)
                continue
            self._moving(found, thing, count, here, ram, was)
        for resource in self.content.get("resources", ()):
            full, empty = resource["full"], resource.get("empty", 0)
            found[resource["name"]] = (self.value(resource["value"], ram, was) - empty) / (full - empty)
        for number in self.content.get("numbers", ()):
            now, before = self.value(number["value"], ram, was), self.value(number["value"], was, was)
            scale = number.get("scale", 255)
            found[f"{number['name']} value"], found[f"{number['name']} change"] = (
                now / scale,
                (now - before) / scale,
            )
        for category in self.content.get("categories", ()):
            code = self.value(category["value"], ram, was)
            for value in category["values"]:
                found[f"{category['name']} = {value}"] = float(code == value)
        return {name: max(-4.0, min(4.0, value)) for name, value in found.items()}

    def _moving(self, found, thing, count, here, ram, was):
        members = {i: self.place(thing, ram, was, i) for i in range(count)}
        names = {i: thing["name"] if count == 1 else f"{thing['name']} {i}" for i in range(count)}
        if count > 5:
            there = [i for i, place in members.items() if place is not None]
            found[f"{thing['name']} share present"] = len(there) / count
            if here is not None:
                there.sort(key=lambda i: abs(members[i][0] - here[0]) + abs(members[i][1] - here[1]))
            places = there[:5] + [None] * (5 - len(there[:5]))
            names = {i: f"{thing['name']} nearest {k}" for k, i in enumerate(places) if i is not None}
            names |= {-k: f"{thing['name']} nearest {k}" for k, i in enumerate(places) if i is None and k}
            names |= {count: f"{thing['name']} nearest 0"} if not there else {}
        for i, name in names.items():
            place = members.get(i)
            found[f"{name} present"] = float(place is not None)
            for axis, size in ((0, 160), (1, 210)):
                letter = "xy"[axis]
                found[f"{name} {letter}"] = 0 if place is None else place[axis] / size
                change = 0 if place is None else self.change(thing, ram, was, i)[axis] / 16
                found[f"{name} change {letter}"] = change
            self._away(found, name, place, here)

    def _away(self, found, name, place, here):
        for axis, size in ((0, 160), (1, 210)):
            letter = "xy"[axis]
            pixels = 0 if place is None or here is None else place[axis] - here[axis]
            found[f"{name} from player {letter}"] = pixels / size
            found[f"{name} near {letter}"] = max(-24, min(24, pixels)) / 24

    def _still(self, found, thing, count, here, ram, was):
        places = [self.place(thing, ram, was, i) for i in range(count)]
        there = [p for p in places if p is not None]
        found[f"{thing['name']} share left"] = len(there) / count
        nearest = None
        if here is not None and there:
            nearest = min(there, key=lambda p: abs(p[0] - here[0]) + abs(p[1] - here[1]))
        self._away(found, f"{thing['name']} nearest", nearest, here)
        for i, place in enumerate(places) if count <= 32 else ():
            name = thing["name"] if count == 1 else f"{thing['name']} {i}"
            found[f"{name} present"] = float(place is not None)

    def collision_steps(self, rule, actions, ram, was):
        """Steps to the first collision of each action with its best way of going on; the horizon if there is none."""
        player, horizon = self.content["player"], rule.get("horizon", 4)
        here, every = self.place(player, ram, was), rule.get("every", 0.5)
        if here is None:
            return [horizon] * len(actions)
        heading = self.change(player, ram, was)
        left, top, right, bottom = player.get("area", (-1e4, -1e4, 1e4, 1e4))

        def move(name):
            given = player.get("moves", {})
            found = given.get(name, given.get(name.removesuffix("FIRE") or "NOOP", (0, 0)))
            return heading if found == "keeps" else found

        threats = []
        for thing in self.content["things"]:
            for i in range(thing.get("count", 1)) if thing["name"] in rule["things"] else ():
                place = self.place(thing, ram, was, i)
                if place is None or not self.value(thing.get("deadly", "True"), ram, was, i):
                    continue
                speed = self.change(thing, ram, was, i)
                if "speed" in thing:
                    speed = [self.value(e, ram, was, i) for e in thing["speed"]]
                boxes = thing["kills"] if isinstance(thing["kills"][0], list) else [thing["kills"]]
                after = self.value(thing.get("after", "0"), ram, was, i)
                threats += [(place, speed, after, box) for box in boxes]

        def met(first, then, t):
            path = [here[k] + first[k] * min(t, 1) + then[k] * max(t - 1, 0) for k in (0, 1)]
            x = min(max(path[0], min(left, here[0])), max(right, here[0]))
            y = min(max(path[1], min(top, here[1])), max(bottom, here[1]))
            for place, speed, after, box in threats:
                dx, dy = place[0] + speed[0] * t - x, place[1] + speed[1] * t - y
                if t >= after and box[0] <= dx <= box[2] and box[1] <= dy <= box[3]:
                    return True
            return False

        times = np.arange(every, horizon + every / 2, every)
        moves = [tuple(move(name)) for name in actions]
        ways = set(moves)
        steps = {a: max(next((t for t in times if met(a, c, t)), horizon) for c in ways) for a in ways}
        return [steps[a] for a in moves]
