"""Values that are wrong, extreme or absurd, and small files that are right."""

NUMBERS = [
    *("0", "-1", "nan", "inf", "-inf", "1e308", "1e-308", "-1e308", "1e18", "1000000000", "0.5"),
    *("9223372036854775808", "1099511627776", "4294967296", "1" * 5000, "", "0x10", "one", "1e30"),
]
TOML = [
    *("0", "-1", "nan", "inf", "1e308", "1e-308", "1000000000", "1000000000000", "1e18", "true"),
    *(
        "9223372036854775808",
        "1" * 5000,
        "[" * 5000 + "]" * 5000,
        '""',
        '"x"',
        "[]",
        "{}",
        "2020-01-01",
    ),
    *(
        "1000000000000000000",
        '"' + "x" * 5000 + '"',
        "[1, 'a', []]",
        "{a = {b = {c = 1}}}",
        "'",
        "=",
    ),
    *(
        '"os:system"',
        '"no.such:thing"',
        '"mlp(1000000000)"',
        '"../.."',
        '"/dev/zero"',
        '"fifo.csv"',
    ),
]
CELLS = [
    "",
    "nan",
    "inf",
    "-1",
    "0",
    "1e308",
    "1e-308",
    "x",
    "1e400",
    '"',
    "\x00",
    "1;2",
    "9" * 400,
]
LAWS = [
    *("lognormal sigma", "gamma shape", "weibull shape", "pareto shape", "erlang stages"),
    *("hyperexponential scv", "exponential rate", "nolaw x", "trace x", "os:system x"),
]
FLEET = "service_rate,count,name\n0.5,2,slow\n1.0,3,fast\n"
ROUTING = "routing\n0.2\n0.2\n"
TRACE = "duration,class\n1.0,slow\n2.0,slow\n1.5,fast\n"
CONSTANTS = (
    "[constants]\ninitial-gap = 2.3\nsmoothness = 10.0\ngradient-noise = 1.0\nheterogeneity = 1.0\n"
)
EXPERIMENT = """fleet = "fleet.csv"
rounds = 12
data = "digits"
partition = "homogeneous"
model = "mlp(4)"
batch-size = 8
start = "spread"
seeds = 1
evaluate-every = 6
targets = [0.5]
threads = 1
batched = false
checkpoint-seconds = 30.0

[[strategy]]
name = "one"
routing = "uniform"
concurrency = 3
learning-rate = 0.1
rule = "async-sgd"
"""
LOG = """device,start,end
phone,0.0,1.0
phone,1.0,2.5
tablet,0.0,3.0
tablet,3.0,
"""
PLAN_ARGUMENTS = ("plan", "fleet.csv", "--objective", "throughput", "--concurrency", "5")
