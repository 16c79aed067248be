"""Reference values that independent torch code computed in float64 on random inputs.

12 rollouts (3 groups of 4) of 10 tokens; `mask` marks completion tokens. Settings: GRPO ε 1e-6 and
sample standard deviation; clip 0.2 / 0.28, dual clip 3; truncation at 2; losses use `adv/grpo` and
are token means.
"""

from pathlib import Path

import numpy as np

GROUP_SIZE = 4
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
VALUES = dict(np.load(Path(__file__).parent.parent / "data" / "algorithms.npz"))
MASK = VALUES["mask"].astype(bool)
