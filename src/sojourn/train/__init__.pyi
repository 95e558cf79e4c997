from .checkpoint import Checkpoint
from .problem import Problem
from .progress import progress_bar
from .replay import evaluation_spacing, train
