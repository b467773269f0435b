"""Replay a seed: `python tests/simulation SEED [-v]` tells what happened; -v also every command that Redis answered."""

import sys
from pathlib import Path

for _folder in (Path(__file__).parents[2], Path(__file__).parents[1]):
    sys.path.insert(0, str(_folder))


def main(words: list[str]) -> int:
    from simulation.run import replay

    seeds = [int(word) for word in words if not word.startswith("-")]
    if not seeds:
        print(__doc__)
        return 2
    return max(replay(seed, verbose="-v" in words) for seed in seeds)


sys.exit(main(sys.argv[1:]))
