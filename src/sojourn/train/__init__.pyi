from .checkpoint import Checkpoint as Checkpoint
from .data import load_dataset as load_dataset
from .experiment import Experiment as Experiment
from .models import build_model as build_model
from .partition import make_partition as make_partition
from .problem import Problem as Problem
from .progress import progress_bar as progress_bar
from .replay import evaluation_spacing as evaluation_spacing, train as train
from .run import run_experiment as run_experiment
