from .checkpoint import Checkpoint as Checkpoint
from .problem import Problem as Problem
from .progress import progress_bar as progress_bar
from .replay import evaluation_spacing as evaluation_spacing, train as train
