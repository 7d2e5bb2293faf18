"""All benchmarks, one after the other: python -m bench"""

import subprocess
import sys

for name in ("guardian", "learner", "replay", "theory", "lookahead"):
    print(f"\n=== {name}", flush=True)
    if subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode:
        sys.exit(f"bench.{name} failed")
