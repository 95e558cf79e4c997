"""Settings shared by the tests of training."""

import torch

torch.set_num_threads(1)
