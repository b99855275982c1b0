from __future__ import annotations

import torch

# The models are tiny: a second thread only adds waiting.
torch.set_num_threads(1)
