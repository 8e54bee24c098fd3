"""What a model card says of the weights that it lies beside."""

import pytest

from qkv.interop.card import model_card
from qkv.interop.exporting import find_family
from qkv.models import Layout, ModelConfig, Sizes

SIZES = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_ctx=8, d_mlp=24)
SUMMARY = {
    "val_loss": 4.5,
    "last_val_loss": 7.25,
    "bits_per_byte": 2.97,
    "steps": 200,
    "best_step": 16,
    "baselines_nats": {"unigram": 5.5},
}


def card(kind="CausalLM", weights="best", **changes):
    config = ModelConfig(kind=kind, sizes=SIZES, layout=Layout())
    return model_card("run", config, find_family(config, None), {}, SUMMARY | changes, weights=weights)


def test_the_figures_are_those_of_the_weights_that_are_exported():
    best, last = card(), card(weights="last")
    assert "| this model | 4.5000 |" in best and "| step of these weights | 16 |" in best and "2.9700 bits" in best
    assert "| this model | 7.2500 |" in last and "| step of these weights | 200 |" in last and "bits per" not in last
    assert "2.9700 bits" in card(weights="last", best_step=200, last_val_loss=4.5)


@pytest.mark.parametrize(("kind", "unit"), [("CausalLM", "token"), ("MaskedLM", "hidden token")])
def test_the_unit_is_that_of_the_task_and_rows_that_are_not_there_are_not_explained(kind, unit):
    assert f"| | nats per {unit} |" in card(kind) and "The other rows need no Transformer" in card(kind)
    assert "other rows" not in card(kind, baselines_nats={})


def test_validation_data_are_not_called_unseen():  # `--val` may name the very text that is trained on, or the parent's
    assert "not trained on" not in card() and "On the data that it was validated on, nats per token" in card()
