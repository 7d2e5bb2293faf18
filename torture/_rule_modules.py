"""Small modules of rules in which one number (N) decides: a table of all the places where it can stand.

`written` makes the folder of one of them, as it is or as a twin that differs only in comments, docstrings, blank lines
and functions that nobody calls. Run as a script, it prints the fingerprints of the rules in the folders given.
"""

import json
import re
import sys
from contextlib import suppress
from pathlib import Path

RULE = "def speed(state, action):\n    return abs(action[0]) <= "

MODULES: dict[str, dict[str, str]] = {
    "global": {"rules.py": f"LIMIT = N\n{RULE}LIMIT\n"},
    "constant": {"rules.py": f"{RULE}N\n"},
    "default": {"rules.py": "def speed(state, action, limit=N):\n    return action[0] <= limit\n"},
    "keyword default": {"rules.py": "def speed(state, action, *, limit=N):\n    return action[0] <= limit\n"},
    "closure": {
        "rules.py": "def make(limit):\n    def inner(state, action):\n        return action[0] <= limit\n"
        "    return inner\nspeed = make(N)\n"
    },
    "class attribute": {
        "rules.py": "class Limits:\n    most = N\n" + RULE + "Limits.most\n",
    },
    "instance attribute": {
        "rules.py": "class Limits:\n    def __init__(self, most):\n        self.most = most\n"
        f"LIMITS = Limits(N)\n{RULE}LIMITS.most\n",
    },
    "slot": {
        "rules.py": "class Limits:\n    __slots__ = ('most',)\n    def __init__(self, most):\n"
        f"        self.most = most\nLIMITS = Limits(N)\n{RULE}LIMITS.most\n",
    },
    "module attribute": {"limits.py": "LIMIT = N\n", "rules.py": f"import limits\n{RULE}limits.LIMIT\n"},
    "attribute chain": {
        "package/__init__.py": "",
        "package/limits.py": "LIMIT = N\n",
        "rules.py": f"import package.limits\n{RULE}package.limits.LIMIT\n",
    },
    "longer chain": {
        "a/__init__.py": "",
        "a/b/__init__.py": "",
        "a/b/c.py": "class Limits:\n    most = N\n",
        "rules.py": f"import a.b.c\n{RULE}a.b.c.Limits.most\n",
    },
    "namespace package": {
        "package/limits.py": "LIMIT = N\n",
        "rules.py": f"import package.limits\n{RULE}package.limits.LIMIT\n",
    },
    "from package import module": {
        "package/__init__.py": "",
        "package/limits.py": "LIMIT = N\n",
        "rules.py": f"from package import limits\n{RULE}limits.LIMIT\n",
    },
    "one of two imports, read by an inner function": {
        "slow_limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    try:\n        import fast_limits as limits\n"
        "    except ImportError:\n        import slow_limits as limits\n"
        "    return all(abs(x) <= limits.LIMIT for x in action)\n",
    },
    "beside an attribute named fingerprint": {
        "rules.py": "class Limits:\n    fingerprint = 'the same'\n    def __init__(self, most):\n"
        f"        self.most = most\nLIMITS = Limits(N)\n{RULE}LIMITS.most\n",
    },
    "beside an attribute named py_func": {
        "rules.py": "class Limits:\n    def __init__(self, most):\n        self.most, self.py_func = most, make\n"
        f"def make():\n    pass\nLIMITS = Limits(N)\n{RULE}LIMITS.most\n",
    },
    "an event that is set or not": {
        "rules.py": "import threading\nOPEN = threading.Event()\nif N == 2:\n    OPEN.set()\n"
        "def speed(state, action):\n    return OPEN.is_set() or action[0] <= 0\n",
    },
    "import as": {
        "package/__init__.py": "",
        "package/limits.py": "LIMIT = N\n",
        "rules.py": f"import package.limits as s\n{RULE}s.LIMIT\n",
    },
    "exported again": {
        "package/__init__.py": "from package.limits import LIMIT\n",
        "package/limits.py": "LIMIT = N\n",
        "rules.py": f"import package\n{RULE}package.LIMIT\n",
    },
    "from import inside": {
        "limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    from limits import LIMIT\n    return action[0] <= LIMIT\n",
    },
    "import inside": {
        "limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    import limits\n    return action[0] <= limits.LIMIT\n",
    },
    "import chain inside": {
        "package/__init__.py": "",
        "package/limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    import package.limits\n"
        "    return action[0] <= package.limits.LIMIT\n",
    },
    "import as inside": {
        "package/__init__.py": "",
        "package/deep/__init__.py": "",
        "package/deep/limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    import package.deep.limits as s\n"
        "    return action[0] <= s.LIMIT\n",
    },
    "from package import module inside": {
        "package/__init__.py": "",
        "package/limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    from package import limits as s, limits as t\n"
        "    return action[0] <= t.LIMIT\n",
    },
    "import inside, read in a function inside": {
        "limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    import limits\n    def inner(x):\n"
        "        return x <= limits.LIMIT\n    return inner(action[0])\n",
    },
    "relative import inside": {
        "package/__init__.py": "",
        "package/limits.py": "LIMIT = N\n",
        "package/rules.py": "def speed(state, action):\n    from .limits import LIMIT\n"
        "    return action[0] <= LIMIT\n",
        "rules.py": "from package.rules import speed\n",
    },
    "import inside a helper": {
        "limits.py": "LIMIT = N\n",
        "helpers.py": "def most():\n    import limits\n    return limits.LIMIT\n",
        "rules.py": f"import helpers\n{RULE}helpers.most()\n",
    },
    "cached helper": {
        "rules.py": "from functools import cache\n@cache\ndef most():\n    return N\n" + RULE + "most()\n",
    },
    "cached helper with a size": {
        "rules.py": "from functools import lru_cache\nLIMIT = N\n@lru_cache(maxsize=8)\n"
        "def most():\n    return LIMIT\n" + RULE + "most()\n",
    },
    "cached method": {
        "rules.py": "from functools import cache\nclass Limits:\n    @staticmethod\n    @cache\n"
        "    def most():\n        return N\n" + RULE + "Limits.most()\n",
    },
    "cached property": {
        "rules.py": "from functools import cached_property\nclass Limits:\n    @cached_property\n"
        f"    def most(self):\n        return N\nLIMITS = Limits()\n{RULE}LIMITS.most\n",
    },
    "one function for each type": {
        "rules.py": "from functools import singledispatch\n@singledispatch\ndef most(x):\n    return 0\n"
        f"@most.register\ndef of_int(x: int):\n    return N\n{RULE}most(1)\n",
    },
    "wrapped helper": {
        "rules.py": "from functools import wraps\ndef twice(f):\n    @wraps(f)\n    def inner(*a):\n"
        "        return 2 * f(*a)\n    return inner\n@twice\ndef most():\n    return N\n" + RULE + "most()\n",
    },
    "wrapper that looks like a library": {
        "rules.py": "import functools, numpy as np\n@functools.wraps(np.clip)\ndef most(*a):\n    return N\n"
        + RULE
        + "most()\n",
    },
    "decorator": {
        "rules.py": "def scaled(by):\n    def outer(f):\n        def inner(*a):\n"
        "            return f(*a) <= by\n        return inner\n    return outer\n"
        "@scaled(N)\ndef speed(state, action):\n    return action[0]\n",
    },
    "context manager": {
        "rules.py": "from contextlib import contextmanager\n@contextmanager\ndef most():\n    yield N\n"
        "def speed(state, action):\n    with most() as limit:\n        return action[0] <= limit\n",
    },
    "vectorised": {
        "rules.py": "import numpy as np\n@np.vectorize\ndef most(x):\n    return N * x\n"
        + RULE
        + "most(1)\n",
    },
    "decorated by a package": {
        "rules.py": "import numpy as np\n@np.errstate(all='ignore')\ndef most():\n    return N\n"
        + RULE
        + "most()\n",
    },
    "safe set": {
        "rules.py": "import numpy as np\nimport rlpd_gx as gx\nSET = gx.Box([-N], [N])\ndef speed(state, action):\n"
        "    return bool(SET.contains(np.array(action[:1])))\n",
    },
    "built-in types": {
        "rules.py": "import types\nTYPES = (type(None), types.MappingProxyType, type(...))\n"
        "def speed(state, action):\n    return isinstance(state, TYPES) or action[0] <= N\n",
    },
    "child of an installed class": {
        "rules.py": "import logging\nclass Limits(logging.Formatter):\n    def most(self):\n        return N\n"
        f"LIMITS = Limits()\n{RULE}LIMITS.most()\n",
    },
    "partial": {
        "rules.py": "from functools import partial\ndef under(limit, state, action):\n"
        "    return action[0] <= limit\nspeed = partial(under, N)\n",
    },
    "method": {
        "rules.py": "class Limits:\n    def speed(self, state, action):\n        return action[0] <= N\n"
        "speed = Limits().speed\n",
    },
    "callable object": {
        "rules.py": "class Limits:\n    def __call__(self, state, action):\n        return action[0] <= N\n"
        "speed = Limits()\n",
    },
    "property": {
        "rules.py": "class Limits:\n    @property\n    def most(self):\n        return N\n"
        f"LIMITS = Limits()\n{RULE}LIMITS.most\n",
    },
    "static method": {
        "rules.py": "class Limits:\n    @staticmethod\n    def most():\n        return N\n"
        + RULE
        + "Limits.most()\n",
    },
    "dataclass field": {
        "rules.py": "from dataclasses import dataclass\n@dataclass\nclass Limits:\n    most: float = N\n"
        f"LIMITS = Limits()\n{RULE}LIMITS.most\n",
    },
    "inherited": {
        "base.py": "class Base:\n    most = N\n",
        "rules.py": f"from base import Base\nclass Limits(Base):\n    least = 0\n{RULE}Limits().most\n",
    },
    "dict with methods": {
        "rules.py": "class Limits(dict):\n    def __missing__(self, key):\n        return N\n"
        f"LIMITS = Limits()\n{RULE}LIMITS['most']\n",
    },
    "number with methods": {
        "rules.py": "class Limit(float):\n    def __ge__(self, other):\n        return other <= N\n"
        f"LIMIT = Limit(1)\n{RULE}LIMIT\n",
    },
    "hidden from pickle": {
        "rules.py": "class Limits:\n    def __init__(self):\n        self.most = N\n"
        "    def __getstate__(self):\n        return {}\n" + f"LIMITS = Limits()\n{RULE}LIMITS.most\n",
    },
    "numpy array": {"rules.py": f"import numpy as np\nLIMIT = np.array([3.0, N])\n{RULE}LIMIT[1]\n"},
    "object array": {
        "rules.py": f"import numpy as np\nLIMIT = np.array([None, N], dtype=object)\n{RULE}LIMIT[1]\n"
    },
    "tensor": {"rules.py": f"import torch\nLIMIT = torch.tensor([3.0, N])\n{RULE}LIMIT[1]\n"},
    "nested function": {
        "rules.py": "def speed(state, action):\n    def most():\n        return N\n    return action[0] <= most()\n"
    },
    "comprehension": {
        "rules.py": "def speed(state, action):\n    return all([x <= N for x in action])\n",
    },
    "class inside": {
        "rules.py": "def speed(state, action):\n    class Limits:\n        most = N\n"
        "    return action[0] <= Limits.most\n",
    },
    "text": {"rules.py": "def speed(state, action):\n    return f'{action[0]:.3f}' <= f'N {state}'\n"},
    "dict value": {"rules.py": f"LIMITS = {{'least': 0, 'most': N}}\n{RULE}LIMITS['most']\n"},
    "set member": {
        "rules.py": "STOPS = {'a', 'b', N}\ndef speed(state, action):\n    return state in STOPS\n"
    },
    "order of a table": {
        "rules.py": "PAIRS = [(1, 'a'), (2, 'b')]\nLIMITS = dict(PAIRS[:: 3 - 2 * N])\n"
        "def speed(state, action):\n    return next(v for k, v in LIMITS.items() if state < k) == 'a'\n",
    },
    "changed at import": {
        "limits.py": "LIMITS = {'most': 0}\n",
        "setup_limits.py": "import limits\nlimits.LIMITS['most'] = N\n",
        "rules.py": f"import setup_limits, limits\n{RULE}limits.LIMITS['most']\n",
    },
    "helper of a helper": {
        "rules.py": "def least():\n    return N\ndef most():\n    return least() + 1\n" + RULE + "most()\n"
    },
    "attribute of a function": {"rules.py": f"{RULE}speed.most\nspeed.most = N\n"},
    "except": {
        "rules.py": "def speed(state, action):\n    try:\n        return action[0] <= state[0]\n"
        "    except IndexError:\n        return action[0] <= N\n",
    },
    "sign of a zero": {"rules.py": f"LIMIT = 0.0 * (3 - 2 * N)\n{RULE}LIMIT\n"},
}
"""What a rule's number can stand in; twins of these have the same fingerprint."""

WHOLE: dict[str, dict[str, str]] = {
    "getattr of a module": {
        "limits.py": "LIMIT = N\n",
        "rules.py": f"import limits\n{RULE}getattr(limits, 'LI' + 'MIT')\n",
    },
    "module under another name": {
        "limits.py": "LIMIT = N\n",
        "rules.py": "import limits\ndef speed(state, action):\n    m = limits\n    return action[0] <= m.LIMIT\n",
    },
    "module in a dict": {
        "limits.py": "LIMIT = N\n",
        "rules.py": f"import limits\nMODULES = {{'a': limits}}\n{RULE}MODULES['a'].LIMIT\n",
    },
    "module passed on": {
        "limits.py": "LIMIT = N\n",
        "rules.py": f"import limits\ndef most(m):\n    return m.LIMIT\n{RULE}most(limits)\n",
    },
    "module passed on inside": {
        "limits.py": "LIMIT = N\n",
        "rules.py": "def speed(state, action):\n    import limits\n    m = limits\n    return action[0] <= m.LIMIT\n",
    },
    "module behind a choice": {
        "limits.py": "LIMIT = N\n",
        "others.py": "LIMIT = 5\n",
        "rules.py": f"import limits, others\n{RULE}(others if state else limits).LIMIT\n",
    },
    "module that answers for itself": {
        "limits.py": "ALL = {'LIMIT': N}\ndef __getattr__(name):\n    return ALL[name]\n",
        "rules.py": f"import limits\n{RULE}limits.LIMIT\n",
    },
}
"""Here a whole module counts, so functions that nobody calls do, too."""

UNREADABLE: dict[str, tuple[str, str]] = {
    "importlib": (
        f"import importlib\n{RULE}importlib.import_module('limits').LIMIT\n",
        "importlib.import_module",
    ),
    "importlib's function": (
        f"from importlib import import_module\n{RULE}import_module('limits').LIMIT\n",
        "importlib.import_module",
    ),
    "__import__": (f"{RULE}__import__('limits').LIMIT\n", "__import__"),
    "sys.modules": (f"import sys, limits\n{RULE}sys.modules['limits'].LIMIT\n", "sys.modules"),
    "eval": (f"LIMIT = 1\n{RULE}eval('LIMIT')\n", "eval"),
    "globals": (f"LIMIT = 1\n{RULE}globals()['LIMIT']\n", "globals"),
    "of a function": (f"LIMIT = 1\ndef f():\n    pass\n{RULE}f.__globals__['LIMIT']\n", "__globals__"),
    "of a frame": (f"LIMIT = 1\nimport sys\n{RULE}sys._getframe().f_globals['LIMIT']\n", "_getframe()"),
    "open": (f"{RULE}float(open('limit').read())\n", "open"),
    "path": (f"from pathlib import Path\n{RULE}float(Path('limit').read_text())\n", "read_text()"),
    "environment": (f"import os\n{RULE}float(os.environ['LIMIT'])\n", "os.environ"),
    "open file": (f"FILE = open(__file__)\n{RULE}float(FILE.read())\n", "FILE"),
    "generator": (f"NUMBERS = (n for n in [1])\n{RULE}next(NUMBERS)\n", "NUMBERS"),
    "ufunc": (f"import numpy as np\nmost = np.frompyfunc(lambda x: x, 1, 1)\n{RULE}most(1)\n", "most"),
    "not defined": (f"{RULE}LIMIT\n", "LIMIT"),
}
"""Rules whose number cannot be read, and what is said about them."""


def written(folder: Path, files: dict[str, str], number: int = 1, *, twin: bool = False) -> Path:
    """A folder with the files of a table's row."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r"\bN\b", str(number), text)
        path.write_text(_twin(text) if twin else text)
    return folder


def _twin(text: str) -> str:
    lines = ['"""What this module is for."""', "", "# a comment", ""]
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        if line.lstrip().startswith(("def ", "class ")):
            lines += ["", "", line, f'{indent}    """What it does."""', f"{indent}    # why", ""]
        else:
            lines += [line + "  # so be it"]
    return "\n".join([*lines, "", "def nobody_calls_this():", "    return 12345", "UNUSED = 17", ""])


def main(folders: list[str]) -> None:
    """Print the fingerprint of the rule in each folder, and what is unreadable in it."""
    import rlpd_gx as gx
    from rlpd_gx.rules.fingerprint import unreadable

    found = {}
    for folder in folders:
        before = set(sys.modules)
        sys.path.insert(0, folder)
        import rules  # type: ignore[import-not-found]

        (Path(folder) / "limit").write_text("1")
        first = gx.rule(rules.speed).fingerprint
        with suppress(Exception):  # caches fill when a rule runs; that changes nothing
            rules.speed([], [0.5, 0.5])
        found[folder] = (first, gx.rule(rules.speed).fingerprint, unreadable(rules.speed))
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            if (
                str(getattr(sys.modules[name], "__file__", None) or "").startswith(folder)
                or name == "package"
            ):
                del sys.modules[name]
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
