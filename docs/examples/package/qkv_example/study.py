"""A study: does width help?"""

from qkv import Arm, Design, Effect

WIDTH = Design(
    question="Does width help?",
    minutes=10,
    steps=100,
    base={"n_layers": 1, "n_ctx": 32, "batch_size": 8},
    arms={"narrow": Arm(set={"d_model": 16}), "wide": Arm(set={"d_model": 32})},
    effects=[Effect(name="cost of a narrow model", of="loss", between=("narrow", "wide"), margin=0.02)],
)
