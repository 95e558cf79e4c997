from .data.partition import make_partition as make_partition
from .data.sets import load_dataset as load_dataset
from .experiment.experiment import Experiment as Experiment
from .experiment.models import build_model as build_model, load_weights as load_weights
from .experiment.run import run_experiment as run_experiment
from .problem import metrics as metrics
from .problem.evaluation import evaluation_spacing as evaluation_spacing
from .problem.problem import Problem as Problem
from .replay.checkpoint import Checkpoint as Checkpoint
