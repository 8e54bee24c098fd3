"""What each op writes, and every change that cannot be made."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from qkv.changes import RunMatrix, freeze_changes, parse_change, plan_changes
from qkv.errors import AddressError, ChangeError
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.randomness import generator

SIZES = Sizes(d_vocab=11, d_model=16, n_layers=3, n_heads=4, n_ctx=8, d_mlp=20)
SHARED = Sizes(d_vocab=11, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, n_ctx=8, d_mlp=20)
VOCABULARY = {"the": 3, "a": 4}


def make(sizes=SIZES, seed=0, **layout):
    config = ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(**{"start": "normal", "tied": False} | layout))
    return Catalogue(build(config, seed=seed), VOCABULARY)


def changed(changes, catalogue, seed=0, loader=None):
    """The model's state after `at_start`, and a check that nothing else moved."""
    before = {address: values.clone() for address, values in catalogue.state().items()}
    plan = plan_changes(changes, catalogue, seed, loader)
    assert all(torch.equal(values, before[address]) for address, values in catalogue.state().items())
    after = plan.at_start()
    touched = {p.entry.storage for c in changes for p in after.select(parse_change(c).selector)}
    assert all(torch.equal(after.state()[a], before[a]) for a in after.addresses if a not in touched)
    return after


@pytest.mark.parametrize("matrix", ["W_Q", "W_K", "W_V", "W_O"])
def test_identity_is_the_identity_and_a_head_is_its_coordinates(matrix):
    assert torch.equal(changed([f"L1.{matrix}=identity"], make()).state()[f"L1.{matrix}"], torch.eye(16))
    catalogue = make()
    other = catalogue.view(f"L1.H0.{matrix}").clone()
    after = changed([f"L1.H2.{matrix}=identity"], catalogue)
    block = torch.eye(16)[8:12] if matrix == "W_O" else torch.eye(16)[:, 8:12]
    assert torch.equal(after.view(f"L1.H2.{matrix}"), block)
    assert torch.equal(after.view(f"L1.H0.{matrix}"), other)


def test_identity_of_another_shape_is_an_error_that_says_why():
    for change, says in (
        ("L0.W_in=identity", r"L0.W_in cannot be the identity: it is stored as 16 x 20.*here 16 x 16"),
        ("W_E=identity", "11 x 16"),
        ("L0.norm1.gain=identity", "stored as 16,"),
    ):
        with pytest.raises(ChangeError, match=says):
            plan_changes([change], make(), 0)
    with pytest.raises(ChangeError, match="16 x 8"):
        plan_changes(["L0.H3.W_K=identity"], make(SHARED), 0)


def test_random_values_are_a_function_of_seed_address_and_step():
    draws = generator(7, "random", "L1.W_in", 0).standard_normal((16, 20), dtype=np.float32)
    expected = torch.from_numpy(draws) * 0.3
    assert torch.equal(changed(["L*.W_in=random(0.3)"], make(), 7).view("L1.W_in"), expected)
    assert torch.equal(changed(["L1.W_in=random(0.3)"], make(seed=5), 7).view("L1.W_in"), expected)
    whole = changed(["L1.W_V=random(0.3)"], make(), 7).view("L1.W_V")
    assert torch.equal(changed(["L1.H2.W_V=random(0.3)"], make(), 7).view("L1.H2.W_V"), whole[2])


def test_random_without_a_number_draws_from_the_matrix_own_start():
    catalogue = make()
    start = catalogue.view("W_E").clone()
    drawn = changed(["W_E=random"], catalogue).view("W_E")
    assert not torch.equal(drawn, start) and 0.015 < drawn.std() < 0.025
    gain = make()
    with pytest.raises(ChangeError, match="no effect"):
        plan_changes(["norm_f.gain=random(train=true)"], gain, 0)


@pytest.mark.parametrize("address", ["L0.W_Q", "L0.W_in", "L0.W_out", "W_E", "L0.H1.W_Q", "L0.H1.W_O"])
def test_orthogonal_has_orthonormal_columns_or_rows(address):
    values = changed([f"{address}=orthogonal"], make()).part(address)
    values = values.of(values.entry.parameter.detach())
    small = values.T @ values if values.shape[0] >= values.shape[1] else values @ values.T
    torch.testing.assert_close(small, torch.eye(len(small)), rtol=0, atol=1e-5)
    for wrong in ("L0.norm1.gain=orthogonal", "W_E[the]=orthogonal"):
        with pytest.raises(ChangeError, match="not a matrix"):
            plan_changes([wrong], make(), 0)


def test_zero_scale_rank_and_mean_are_what_they_say():
    catalogue = make(bias=True, positions="learned")
    before = {address: values.clone() for address, values in catalogue.state().items()}
    after = changed(
        ["L0.H1.W_V=zero", "L0.W_in=scale(-2)", "L1.W_in=rank(3)", "L1.H2.W_Q=rank(1)", "W_E=mean",
         "W_pos[2]=mean", "L2.H1.W_Q=mean", "L2.W_O=mean"],
        catalogue,
    )  # fmt: skip
    assert (after.view("L0.W_V")[1] == 0).all() and torch.equal(
        after.view("L0.W_V")[0], before["L0.W_V"].reshape(16, 4, 4)[:, 0]
    )
    assert torch.equal(after.view("L0.W_in"), before["L0.W_in"] * -2)
    u, s, vh = torch.linalg.svd(before["L1.W_in"].double(), full_matrices=False)
    torch.testing.assert_close(after.view("L1.W_in").double(), u[:, :3] * s[:3] @ vh[:3], rtol=1e-5, atol=1e-7)
    assert torch.linalg.matrix_rank(after.view("L1.H2.W_Q"), tol=1e-6) == 1
    torch.testing.assert_close(after.view("W_E"), before["W_E"].mean(0).expand(11, 16))
    torch.testing.assert_close(after.view("W_pos[2]"), before["W_pos"].mean(0))
    assert torch.equal(after.view("W_pos[3]"), before["W_pos"][3])
    torch.testing.assert_close(after.view("L2.W_Q")[1], before["L2.W_Q"].reshape(16, 4, 4).mean(1))
    torch.testing.assert_close(after.view("L2.W_O"), before["L2.W_O"].reshape(4, 4, 16).mean(0).expand(4, 4, 16))


@pytest.mark.parametrize("tied", [True, False])
def test_reset_gives_back_what_build_gave(tied):
    fresh, moved = make(tied=tied, start="zero_out"), make(tied=tied, start="zero_out")
    with torch.no_grad():
        for entry in moved:
            entry.parameter.add_(1)
    after = changed(["W_U,L0.H1.W_Q,L1.W_out,norms=reset"], moved)
    for address in ("W_U", "L0.H1.W_Q", "L1.W_out", "L2.norm2.gain", "norm_f.gain"):
        assert torch.equal(after.view(address), fresh.view(address)), address
    with pytest.raises(ChangeError, match="no effect"):
        plan_changes(["L0.W_Q=reset"], fresh, 0)


def test_changes_are_made_in_their_order():
    after = changed(["L0.W_Q=identity", "L0.W_Q=scale(3)", "L0.H0.W_Q=zero"], make())
    expected = torch.eye(16) * 3
    expected[:, :4] = 0
    assert torch.equal(after.state()["L0.W_Q"], expected)


def test_share_makes_one_parameter_of_two():
    catalogue = make()
    kept = catalogue.view("L0.W_Q").clone()
    after = plan_changes(["L*.W_Q=share(L0.W_Q)", "L2.W_Q=scale(2)"], catalogue, 0).at_start()
    assert after.aliases == {"L1.W_Q": "L0.W_Q", "L2.W_Q": "L0.W_Q"}
    blocks = catalogue.model.blocks
    assert blocks[0].attention.W_Q is blocks[1].attention.W_Q is blocks[2].attention.W_Q
    assert torch.equal(after.view("L1.W_Q"), kept * 2)
    within = plan_changes(["L0.W_K=share(L0.W_Q)"], make(), 0).at_start()
    assert within.aliases == {"L0.W_K": "L0.W_Q"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("L0.W_Q=share(L0.W_Q)", "no effect"),
        ("L0.W_Q=share(L0.W_in)", r"L0.W_Q is \[16, 16\], L0.W_in is \[16, 20\]"),
        ("L1.H1.W_Q=share(L0.W_Q)", "expected whole matrices"),
        ("W_U=share(W_E)", r"W_U is \[16, 11\], W_E is \[11, 16\]"),
        ("L0.W_in=rank(16)", r"rank\(16\) has no effect on L0.W_in: it is 16 x 20"),
        ("norm_f.gain=rank(1)", "no effect"),
        ("L0.W_in=mean", "not made of several heads or rows"),
        ("L*.W_O=zero(train=true)", "no effect"),
        ("**=freeze", "leaves nothing to train from step 0"),
        ("**=freeze@50..60", "leaves nothing to train from step 50"),
        ("W_E=freeze@200..", "begins at step 200 of a run of 100"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(change, says):
    with pytest.raises(ChangeError, match=says):
        plan_changes([change], make(start="zero_out"), 0, n_steps=100)


@pytest.mark.parametrize(
    "change", ["W_NOPE=freeze", "L99.W_Q=freeze", "L0.W_Q=share(L9.W_Q)", "L0.x=zero", "L0.H0.QK=zero"]
)
def test_a_change_of_what_is_not_there_is_an_address_error(change):
    with pytest.raises(AddressError):
        plan_changes([change], make(), 0)


@pytest.mark.parametrize(
    "changes",
    [
        ["W_E=freeze", "W_E=freeze"],
        ["attn=freeze", "L0.W_Q=freeze"],
        ["L0.W_Q=freeze", "L0.H1.W_Q=freeze"],
        ["W_E=freeze", "W_E[the]=freeze"],
        ["L0.W_Q=freeze", "L0.W_Q=freeze@5..9"],
        ["L0.W_Q=freeze@..5", "L0.W_Q=freeze@5..9", "L0.W_Q=freeze@3..8"],
        ["L1.W_Q=share(L0.W_Q)", "L0.W_Q=freeze", "L1.W_Q=freeze"],
        ["L0.W_Q=identity", "L0.W_Q=identity"],
    ],
)
def test_freezing_what_is_frozen_is_an_error(changes):
    plan_changes(changes[:-1], make(), 0)
    with pytest.raises(ChangeError, match="no effect"):
        plan_changes(changes, make(), 0)


def test_freezing_more_than_is_frozen_is_not():
    for changes in (
        ["L0.W_Q=freeze", "attn=freeze"],
        ["L0.W_Q=freeze@..5", "L0.W_Q=freeze@4..9"],
        ["L0.W_Q=freeze@..5", "L0.W_Q=freeze@6.."],
        ["L0.H1.W_Q=freeze", "L0.W_Q=freeze"],
        ["L0.W_Q=freeze", "L0.W_Q=scale(2)"],
    ):
        plan_changes(changes, make(), 0)


def test_frozen_lists_whole_matrices_by_step():
    plan = plan_changes(["W_E=freeze@2..4", "L0.H[0-3].W_Q=freeze", "L0.H1.W_V=freeze", "L1.W_Q=freeze@3.."], make(), 0)
    assert plan.frozen(0) == {"L0.W_Q"}
    assert plan.frozen(2) == {"L0.W_Q", "W_E"}
    assert plan.frozen(3) == {"L0.W_Q", "W_E", "L1.W_Q"}
    assert plan.frozen(99) == {"L0.W_Q", "L1.W_Q"}


def test_for_looking_only_changes_of_values_have_an_effect():
    catalogue = make()
    after = plan_changes(["L0.W_Q=identity", "L1.H2.W_O=zero"], catalogue, 0, looking=True).at_start()
    assert torch.equal(after.state()["L0.W_Q"], torch.eye(16)) and (after.view("L1.H2.W_O") == 0).all()
    for change in ("W_E=freeze", "W_E=only", "W_E=zero@5..", "W_E=zero@..5", "L0.W_Q=identity"):
        with pytest.raises(ChangeError, match="no effect"):
            plan_changes([change], after, 0, looking=True)
    assert plan_changes(["**=zero"], catalogue, 0, looking=True).frozen(0) == set()


def test_only_freezes_everything_else():
    catalogue = make()
    plan = plan_changes(freeze_changes([], ["L0.W_Q", "L1.H2.W_V"]), catalogue, 0)
    assert plan.frozen(0) == set(catalogue.addresses) - {"L0.W_Q", "L1.W_V"}
    with pytest.raises(ChangeError, match="no effect"):
        plan_changes(["**=only"], make(), 0)


def test_description_says_what_else_is_touched_and_what_trains():
    tied = plan_changes(["W_U=freeze", "L0.W_Q=identity@..5", "L0.W_in=random(0.5,train=true)"], make(tied=True), 0)
    tied.at_start()
    assert tied.describe() == [
        "W_U (the same matrix as W_E): frozen.",
        "L0.W_Q: set to the identity and frozen from step 0 to step 4.",
        "L0.W_in: drawn at random from N(0, 0.5).",
        "Matrices that train at step 0: embed 0 of 1, attn 11 of 12, mlp 9 of 9, norms 7 of 7.",
    ]
    plan = plan_changes(["L*.H3.W_K=zero", "attn=only@5.."], make(SHARED), 0)
    assert plan.describe()[0] == (
        "L0.H3.W_K (the same matrix as L0.H2.W_K), L1.H3.W_K (the same matrix as L1.H2.W_K) "
        "and L2.H3.W_K (the same matrix as L2.H2.W_K): set to 0 and frozen."
    )
    assert plan.describe()[1].endswith("and 8 more: trained, and everything else frozen from step 5 to the end.")
    shared = plan_changes(["L1.W_Q=share(L0.W_Q)"], make(), 0)
    shared.at_start()
    assert shared.describe()[0] == "L1.W_Q (the same matrix as L0.W_Q): one matrix with L0.W_Q."
    assert plan_changes([], make(), 0).describe() == []


def test_load_reads_files_whose_keys_are_addresses(tmp_path):
    path = tmp_path / "weights.safetensors"
    stored = {
        "W_E": torch.rand(11, 16),
        "L0.W_Q": torch.rand(16, 16),
        "L1.H2.W_Q": torch.rand(16, 4),
        "L2.W_V": torch.rand(4, 16, 4),
    }
    save_file(stored, path)
    after = changed(
        [f"W_E=load({path})", f"L0.H1.W_Q=load({path})", f"L1.H2.W_Q=load({path})", f"L2.W_V=load({path})",
         f"L1.W_O=load({path}:L0.W_Q)"],
        make(),
    )  # fmt: skip
    assert torch.equal(after.view("W_E"), stored["W_E"])
    assert torch.equal(after.view("L0.H1.W_Q"), stored["L0.W_Q"][:, 4:8])
    assert torch.equal(after.view("L1.H2.W_Q"), stored["L1.H2.W_Q"])
    assert torch.equal(after.view("L2.W_V"), stored["L2.W_V"])
    assert torch.equal(after.state()["L1.W_O"], stored["L0.W_Q"])
    tied = changed([f"W_U=load({path})"], make(tied=True))
    assert torch.equal(tied.view("W_E"), stored["W_E"])
    column = {"W_U": torch.rand(16, 11)}
    save_file(column, path)
    assert torch.equal(changed([f"W_U=load({path})"], make(tied=True)).view("W_U"), column["W_U"])


def test_load_reads_a_tied_matrix_by_the_name_that_was_given(tmp_path):
    untied = {"W_E": torch.rand(11, 16), "W_U": torch.rand(16, 11)}
    save_file(untied, tmp_path / "untied.safetensors")
    for where, loader in (
        (tmp_path / "untied.safetensors", None),
        (f"{tmp_path / 'untied.safetensors'}:W_U", None),
        (f"{tmp_path}:W_U", lambda wanted: untied[wanted.address]),
        (tmp_path, lambda wanted: untied[wanted.address]),
    ):
        tied = changed([f"W_U=load({where})"], make(tied=True), loader=loader)
        assert torch.equal(tied.view("W_U"), untied["W_U"]) and torch.equal(tied.view("W_E"), untied["W_U"].t())
    both = changed([f"W_E,W_U=load({tmp_path})"], make(tied=True), loader=lambda wanted: untied[wanted.address])
    assert torch.equal(both.view("W_E"), untied["W_E"])


def test_load_gives_the_loader_what_to_find(tmp_path):
    asked = []

    def loader(matrix):
        asked.append(matrix)
        return torch.full((16, 16), 0.5)

    after = changed(["L0.W_Q=load(runs/a:L2.W_K@100)", f"L1.W_Q=load({tmp_path})"], make(), loader=loader)
    assert asked == [RunMatrix("runs/a", "L2.W_K", 100), RunMatrix(str(tmp_path), "L1.W_Q", None)]
    assert (after.view("L0.W_Q") == 0.5).all()


def test_load_refuses_what_does_not_fit_and_never_unpickles(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    good, broken, pickled = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "c.pt"
    save_file(
        {"W_E": torch.rand(12, 16), "L0.W_Q": torch.full((16, 16), torch.nan), "L0.W_K": torch.ones(16, 16).int()}, good
    )
    for path in (broken, pickled):
        path.write_bytes(pickle.dumps(Trap()))
    for change, says in (
        (f"W_E=load({good})", r"W_E is \[11, 16\]; .*a.safetensors:W_E is \[12, 16\]"),
        (f"L0.W_Q=load({good})", "finite"),
        (f"L0.W_K=load({good})", "floating-point"),
        (f"L0.W_V=load({good})", "unknown address 'L0.W_V'"),
        (f"L0.W_V=load({good}:L0.W_X)", "unknown address 'L0.W_X'"),
        (f"L0.W_V=load({good}:L0.W_Q@5)", "a file has no steps"),
        (f"W_E=load({broken})", "cannot be read as safetensors"),
        (f"W_E=load({tmp_path / 'none.safetensors'})", "cannot be read as safetensors"),
        (f"W_E=load({pickled})", "only .safetensors can"),
        ("W_E=load(nowhere)", "does not exist"),
        ("W_E=load(nowhere:W_E..x)", "is not an address"),
        ("W_E=load(nowhere:W_E@10)", "no other run can be read here"),
    ):
        with pytest.raises(ChangeError, match=says):
            plan_changes([change], make(), 0)
    with pytest.raises(ChangeError, match=r"W_E is \[11, 16\]; r:W_E is \[3\]"):
        plan_changes(["W_E=load(r:W_E)"], make(), 0, lambda matrix: torch.ones(3))


@pytest.mark.parametrize(
    "changes",
    [
        ["L0.W_K=freeze", "L0.W_K=share(L0.W_Q)"],
        ["L0.W_K=random(0.1)@5..", "L0.W_K=share(L0.W_Q)"],
        ["L0.W_K=identity", "L0.W_K=share(L0.W_Q)"],
        ["L0.H1.W_K=zero(train=true)", "L0.W_K=share(L0.W_Q)"],
        ["L1.W_K=share(L0.W_K)", "L0.W_K=share(L0.W_Q)"],
    ],
)
def test_a_change_that_a_share_would_lose_is_refused(changes):
    sizes = Sizes(d_vocab=11, d_model=16, n_layers=2, n_heads=1 if "identity" in changes[0] else 2, n_ctx=8, d_mlp=24)
    with pytest.raises(ChangeError, match="an earlier change of L0.W_K would be lost; put the share before it"):
        plan_changes(changes, make(sizes), 0)
    plan_changes(changes[::-1], make(sizes), 0)


def test_only_trains_what_it_names_under_every_name():
    plan = plan_changes(["L0.W_K=share(L0.W_Q)", "L0.W_K,L1.W_V=only"], make(), 0)
    catalogue = plan.at_start()
    assert set(catalogue.addresses) - plan.frozen(0) == {"L0.W_Q", "L1.W_V"}, "W_Q is W_K's storage"
    plan = plan_changes(["L0.H1.W_V=only"], make(), 0)
    assert "L0.W_V" not in plan.frozen(0) and plan.held_part() == "L0.W_V"


@pytest.mark.parametrize(
    ("named", "trained"),
    [
        ("L0.H0.W_Q,L0.H1.W_K", [0, 1]),  # heads of one storage, by either name
        ("L0.W_Q,L0.H1.W_K", [0, 1, 2, 3]),
        ("L0.H0.W_Q,L0.W_K", [0, 1, 2, 3]),
        ("L0.H1.W_K", [1]),
    ],
)
def test_only_adds_up_what_it_names_of_one_shared_matrix(named: str, trained: list[int]) -> None:
    catalogue = make()
    plan = plan_changes(["L0.W_K=share(L0.W_Q)", f"{named}=only"], catalogue, 0)
    plan.at_start()
    matrix = plan.catalogue.entry("L0.W_Q")
    before = matrix.parameter.detach().clone()
    plan.before_step(0)
    with torch.no_grad():
        matrix.parameter.add_(1.0)
    plan.after_step(0)
    moved = [
        part.piece
        for part in plan.catalogue.select("L0.H*.W_Q")
        if not torch.equal(part.of(matrix.parameter), part.of(before))
    ]
    assert moved == trained


def test_heads_of_a_storage_that_is_cut_otherwise_are_refused():
    with pytest.raises(ChangeError, match="L0.H1.W_O lies in L0.W_V now, whose heads are cut otherwise"):
        plan_changes(["L0.W_O=share(L0.W_V)", "L0.H1.W_O=zero"], make(), 0)
    plan_changes(["L0.W_K=share(L0.W_Q)", "L0.H1.W_K=zero"], make(), 0)


def test_random_from_a_start_that_is_no_draw_says_so_instead_of_holding_zeros():
    with pytest.raises(ChangeError, match=r"the start of L0.W_O is one number everywhere.*random\(0.02\)"):
        plan_changes(["L0.W_O=random"], make(start="zero_out"), 0)
    with pytest.raises(ChangeError, match="the start of L0.norm1.gain is one number"):
        plan_changes(["L0.norm1.gain=random"], make(norm="rms"), 0)
    assert changed(["attn=random"], make(start="zero_out")).view("L0.W_O").count_nonzero() == 0  # others are drawn


def test_a_matrix_that_has_the_rank_is_not_cut_again():
    with pytest.raises(ChangeError, match=r"L0.W_Q=rank\(5\) has no effect"):
        plan_changes(["L0.W_Q=rank(3)", "L0.W_Q=rank(5)"], make(), 0)
    assert torch.linalg.matrix_rank(changed(["L0.W_Q=rank(3)", "L0.W_Q=rank(2)"], make()).state()["L0.W_Q"]) == 2


def test_an_op_of_matrices_on_an_activation_and_the_other_way_round_say_which_is_which():
    with pytest.raises(AddressError, match="L0.v is an activation, and zero is of matrices; .*L0.v=stop_gradient"):
        plan_changes(["L0.v=zero"], make(), 0)
    with pytest.raises(AddressError, match="L0.v is an activation, and zero is of matrices$"):
        plan_changes(["L0.v=zero"], make(), 0, looking=True)
    with pytest.raises(
        AddressError, match="L0.W_V is of matrices, and stop_gradient is of activations, such as L2.resid"
    ):
        plan_changes(["L0.W_V=stop_gradient"], make(), 0)
    with pytest.raises(AddressError, match="query heads share v here: L0.H3.v is L0.KV1.v"):
        plan_changes(["L0.H3.v=stop_gradient"], make(SHARED), 0)


def test_a_shared_table_asks_for_tied_and_several_matrices_are_told_of_in_the_plural():
    with pytest.raises(ChangeError, match="expected equal, or --set tied=true"):
        plan_changes(["W_U=share(W_E)"], make(), 0)
    assert "W_E: multiplied" in plan_changes(["W_E=scale(2)"], make(), 0).sentences()[0]
    assert (
        plan_changes(["L*.W_Q=reset@3.."], make(), 0).sentences()[0].endswith("set back to their start before step 3.")
    )


def test_a_group_that_a_model_has_nothing_of_is_not_proposed_and_a_pattern_is_proposed_deeper():
    with pytest.raises(
        AddressError, match="no matrices of the group rnn; its groups are embed, attn, mlp, norms, head$"
    ):
        make(norm="rms").select("rnn")
    with pytest.raises(AddressError, match=r"did you mean L0.norm1.gain.*'L\*.\*\*.gain'"):
        make(norm="rms").select("L*.gain")
