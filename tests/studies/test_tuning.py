"""Which training comes next, and which rate is chosen, from made-up losses."""

import dataclasses
import hashlib
import math

import numpy as np
import pytest

from qkv.errors import ConfigError
from qkv.randomness import generator
from qkv.studies.engine.design import FORMAT, Arm, Contrast, Design, Grid, Scale, Slice, Text, Trial, canonical, cost
from qkv.studies.engine.tuning import (
    choice,
    expected_runs,
    known_keys,
    next_point,
    pending,
    report_key,
    vertex,
)

SCALE = Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=8, batch_size=2, steps=4, val_tokens=64)


def design(**more) -> Design:
    arms = (Arm(name="a", what="a"), Arm(name="b", what="b", changes=("W_E=freeze",)))
    made = {
        "study": "test", "quick": True, "source_name": "s", "source_sha256": "0", "texts": (("text", Text()),),
        "scale": SCALE, "grid": Grid(), "arms": arms, "contrasts": (cost("b - a", "", "b", "a", 0.1),), "replicates": 3,
        "software": "x",
    }  # fmt: skip
    return Design(**(made | more))


def curve(best: float):
    """Losses over grid points with their minimum at `best`."""
    return lambda k: (k - best) ** 2


def test_the_rate_is_the_vertex_of_the_losses_around_the_best():
    assert vertex({k: curve(0.3)(k) for k in (-1, 0, 1)}) == pytest.approx(0.3, abs=1e-3)
    assert vertex({k: 2.0 + 0.1 * curve(1.4)(k) for k in (-1, 0, 1, 2, 3)}) == pytest.approx(1.4, abs=1e-3)
    far = {k: curve(-0.2)(k) for k in (-2, -1, 0, 1, 2)}
    assert vertex(far | {4: 90.0, -5: 40.0}) == vertex(far), "what lies farther than two steps is not fitted"
    uneven = {-2: 1.0, -1: 0.12, 0: 0.1, 1: 0.11, 2: 9.0}
    assert vertex(uneven) == -0.5, "never nearer to a worse rate than to the best"


@pytest.mark.parametrize(
    "losses",
    [
        {-1: 2.0, 0: 1.0, 1: math.inf},
        {0: 1.0, 1: 2.0, 2: 3.0},
        {-1: math.inf, 0: math.inf, 1: math.inf},
        {-2: -9.0, -1: 1.1, 0: 1.0, 1: 1.1, 2: -9.0} | {-2: 0.0, 2: 0.0, 0: -1.0, -1: 5.0, 1: 5.0},
    ],
    ids=["diverged", "edge", "all diverged", "not convex"],
)
def test_where_no_quadratic_can_be_trusted_the_best_rate_is_taken(losses):
    best = min(losses, key=lambda k: (losses[k], k))
    assert vertex(losses) == best


def test_least_squares_finds_the_vertex_that_noise_moves_the_best_rate_from():
    """Over noisy tuning losses the vertex lies nearer to the true optimum than the best grid point does."""
    draws, errors = generator("tests", "vertex"), []
    for _ in range(300):
        best = draws.uniform(-0.5, 0.5)
        losses = {k: 0.05 * (k - best) ** 2 + 0.004 * draws.standard_normal() for k in range(-2, 3)}
        errors.append((abs(vertex(losses) - best), abs(min(losses, key=losses.__getitem__) - best)))
    fitted, grid = np.mean(errors, axis=0)
    assert fitted < 0.45 * grid


def settle(best: float, grid: Grid) -> dict[int, float]:
    losses: dict[int, float] = {}
    while (k := next_point(losses, grid)) is not None:
        losses[k] = curve(best)(k)
    return losses


@pytest.mark.parametrize("best", [-3.2, -1.0, 0.1, 1.4, 3.0])
def test_the_grid_grows_until_the_optimum_is_inside(best):
    losses = settle(best, Grid(reach=5))
    found = min(losses, key=losses.__getitem__)
    assert found == round(best)
    assert min(losses) < found < max(losses)


def test_a_grid_that_may_not_grow_further_ends():
    losses = settle(50.0, Grid(reach=3))
    assert max(losses) == 3 and len(losses) == 5


def test_equal_losses_take_the_slowest_rate():
    assert next_point({-1: 4.0, 0: 4.0, 1: 4.0}, Grid(reach=1)) is None
    made = {}
    d = design(grid=Grid(reach=1))
    for k in (-1, 0, 1):
        made[d.trial(d.arms[0], 1, k, source="", report=False).key] = 4.0
    chosen = choice(d, d.arms[0], 1, "", made.get)
    assert chosen.k == -1 and not chosen.interior


def run_all(d: Design) -> dict[str, float]:
    """Every training that is asked for, one after another, with losses by learning rate alone."""
    made: dict[str, float] = {}
    order = []
    while (job := next(pending(d, "", made.get), None)) is not None:
        assert job.trial.key not in made, "nothing is run twice"
        made[job.trial.key] = math.log(job.trial.lr / 0.01) ** 2
        order.append(job)
    run_all.order = order
    return made


def test_a_study_ends_with_one_report_per_arm_and_replicate():
    d = design()
    made = run_all(d)
    assert len(made) == 2 * 3 * (1 + d.grid.points)
    for arm in d.arms:
        for replicate in (1, 2, 3):
            assert report_key(d, arm, replicate, "", made.get) in made


def test_tuning_and_reporting_never_share_a_seed_and_arms_of_a_replicate_do():
    d = design()
    run_all(d)
    seeds = {role: {j.trial.seed for j in run_all.order if j.role == role} for role in ("tune", "report")}
    assert not seeds["tune"] & seeds["report"]
    reports = {(j.trial.arm.name, j.replicate): j.trial.seed for j in run_all.order if j.role == "report"}
    assert reports["a", 2] == reports["b", 2] != reports["a", 1]


def test_more_seeds_only_add_trainings():
    few, many = run_all(design(replicates=2)), run_all(design(replicates=4))
    assert set(few) < set(many)
    assert design(replicates=2).protocol == design(replicates=4).protocol
    assert design(replicates=2).hash != design(replicates=4).hash


def test_an_arm_may_take_over_the_rate_of_another():
    arms = (
        Arm(name="a", what="a", lr=0.012),
        Arm(name="b", what="b", changes=("W_E=freeze",), tune="a", lr=9.0),
    )
    d = design(arms=arms)
    made = run_all(d)
    a, b = (j.trial for j in run_all.order if j.role == "report" and j.replicate == 1)
    assert a.lr == b.lr and len(made) == 3 * (4 + 1)


def test_an_arm_may_differ_from_another_in_whose_rate_it_takes_alone():
    arms = (*design().arms, Arm(name="c", what="c", changes=("W_E=freeze",), tune="a"))
    d = design(arms=arms)
    run_all(d)
    rates = {j.trial.lr for j in run_all.order if j.role == "report" and j.replicate == 1}
    assert rates == {0.01} and sum(j.trial.arm.name == "c" for j in run_all.order) == 0, "its run is there already"


def test_pooled_rates_are_tuned_in_the_first_replicates_and_serve_all():
    d = design(grid=Grid(pooled=2), replicates=4)
    made: dict[str, float] = {}
    jobs = []
    while (job := next(pending(d, "", made.get), None)) is not None:
        at, best = math.log2(job.trial.lr / 0.01), {1: 0.0, 2: 0.6}.get(job.replicate, 9.0)
        made[job.trial.key] = (at - best) ** 2
        jobs.append(job)
    assert {job.replicate for job in jobs if job.role == "tune"} == {1, 2}
    assert all(abs(job.k - 0.3) < 1e-3 for job in jobs if job.role == "report"), "the vertex of the mean losses"
    assert len(jobs) == 2 * (2 * 3 + 4) == round(sum(expected_runs(d, arm) - 0.5 for arm in d.arms) * 4)
    assert known_keys(d, "", made.get) == set(made)
    assert design().protocol != d.protocol and "pooled" not in design().as_dict()["grid"], "older hashes stay"


def test_arms_of_the_primary_contrast_come_first():
    arms = (*design().arms, Arm(name="c", what="c", changes=("W_U=freeze",)))
    d = design(arms=arms)
    run_all(d)
    names = [job.trial.arm.name for job in run_all.order]
    assert "c" not in names[: names.index("c")] and names.index("c") == 2 * 3 * 4


def test_models_at_their_start_come_before_what_has_to_be_trained():
    arms = (
        *design().arms,
        Arm(name="c", what="c", changes=("W_U=freeze",)),
        Arm(name="start", what="", trainer="none", tune="none"),
    )
    run_all(design(arms=(arms[2], arms[3], *arms[:2])))
    names = [job.trial.arm.name for job in run_all.order]
    assert set(names[:24]) == {"a", "b"} and names[24:27] == ["start"] * 3 and "start" not in names[27:]


def test_an_arm_whose_rate_the_primary_contrast_takes_comes_first_too():
    arms = (
        Arm(name="free", what="", optimizer="sgd"),
        Arm(name="other", what="", changes=("W_U=freeze",)),
        Arm(name="a", what="", tune="free"),
        Arm(name="b", what="", changes=("W_E=freeze",), tune="free"),
    )
    d = design(arms=arms, replicates=2)
    assert d.main_arms == ("b", "a", "free")
    run_all(d)
    names = [job.trial.arm.name for job in run_all.order]
    assert set(names[: 2 * (4 + 1 + 1)]) == {"free", "a", "b"} and set(names[2 * 6 :]) == {"other"}


def test_a_rate_is_followed_where_it_was_fitted():
    d = design(arms=(Arm(name="a", what="a", lr=0.012), Arm(name="b", what="", changes=("W_E=freeze",), tune="a")))
    run_all(d)
    a, b = (j for j in run_all.order if j.role == "report" and j.replicate == 1)
    assert a.trial.lr == b.trial.lr == d.grid.rate(0.012, a.k) != 0.012 and abs(a.k) <= 0.5


def test_what_is_there_already_is_what_the_design_asks_for():
    d = design()
    made = run_all(d)
    assert known_keys(d, "", made.get) == set(made)
    partly = dict(list(made.items())[:7])
    assert known_keys(d, "", partly.get) == set(partly)
    assert known_keys(design(scale=dataclasses.replace(SCALE, steps=5)), "", made.get) == set()


def test_replicates_learn_from_slices_and_tune_on_other_tokens_than_they_report():
    d = design(slices=2, replicates=3)
    of = {
        (replicate, report): d.trial(d.arms[0], replicate, 0, source="", report=report).slice
        for replicate in (1, 2, 3)
        for report in (False, True)
    }
    assert [of[r, True].index for r in (1, 2, 3)] == [0, 1, 0] and {each.of for each in of.values()} == {2}
    assert all(of[r, False] == dataclasses.replace(of[r, True], tunes=True) for r in (1, 2, 3))
    assert d.trial(d.arms[1], 2, 0, source="", report=True).slice == of[2, True], "arms of a replicate share it"
    assert d.scored(Text()) == (of[1, True], of[2, True])
    assert design().over == "over seeds on one text" and d.over == "over seeds and 2 slices of the text"
    assert design(format=1).trial(d.arms[0], 1, 0, source="", report=True).slice is None


def test_the_key_names_the_outcome_and_nothing_else():
    d = design()
    base = d.trial(d.arms[0], 1, 0, source="/here", report=True)
    same = dataclasses.replace(base, source="/there", arm=dataclasses.replace(base.arm, name="x", what="y"))
    assert same.key == base.key
    others = [
        dataclasses.replace(base, lr=0.5),
        dataclasses.replace(base, seed=9),
        dataclasses.replace(base, source_sha256="1"),
        dataclasses.replace(base, software="y"),
        dataclasses.replace(base, scale=dataclasses.replace(SCALE, steps=5)),
        dataclasses.replace(base, arm=dataclasses.replace(base.arm, optimizer="sgd")),
        dataclasses.replace(base, text=Text(tokenizer="bpe")),
        dataclasses.replace(base, slice=Slice(tunes=True)),
        dataclasses.replace(base, slice=Slice(index=1, of=2)),
        dataclasses.replace(base, slice=None),
        dataclasses.replace(base, format=1),
    ]
    assert len({trial.key for trial in [base, *others]}) == 12


def test_a_trial_survives_its_text():
    d = design()
    arm = Arm(name="a", what="a", sizes=(("d_model", 16),), tables=(("W_E", "counts"),), probes=("drift",))
    trial = design(arms=(arm, d.arms[1])).trial(arm, 1, 1, source="s", report=True)
    assert Trial.from_json(trial.to_json()) == trial and trial.scale.d_model == 16


@pytest.mark.parametrize(
    "more, words",
    [
        ({"replicates": 1}, "--seeds 2"),
        ({"arms": (Arm(name="a", what=""), Arm(name="b", what="", lr=0.1))}, "are the same"),
        ({"arms": (Arm(name="a", what=""), Arm(name="a", what="", optimizer="sgd"))}, "two arms"),
        ({"arms": (Arm(name="a", what="", tune="a"), Arm(name="b", what=""))}, "'a', which has none of its own"),
        ({"arms": (Arm(name="a", what=""),)}, "no arm of the design"),
        ({"contrasts": ()}, "no contrast"),
    ],
)
def test_a_design_that_could_answer_nothing_is_refused(more, words):
    with pytest.raises(ConfigError, match=words):
        design(**more)


def test_a_tuned_and_an_untuned_arm_are_two():
    arms = Arm(name="a", what=""), Arm(name="b", what="", tune="none")
    assert design(arms=arms).arms == arms


def test_a_margin_of_zero_is_refused():
    with pytest.raises(ConfigError, match="expected a number above 0"):
        Contrast(name="x", what="", terms=((1.0, "a", "loss"),), margin=0.0)


def test_a_grid_without_interior_is_refused():
    with pytest.raises(ConfigError, match="no interior"):
        Grid(points=2)


def test_the_key_of_a_trial_is_the_hash_of_its_canonical_json():
    base = design().trial(design().arms[0], 1, 0, source="/here", report=True)
    what = {k: v for k, v in dataclasses.asdict(base).items() if k not in ("source", "format")}
    for width in ("d_head", "d_mlp"):
        assert what["scale"].pop(width) == 0, "a width that follows from the others is no part of a key"
    for later in ("before", "settings", "code"):
        assert what["arm"].pop(later) == (), (
            "nor is a training before it, a setting or code of one's own, where there is none"
        )
    what["arm"] = {k: v for k, v in what["arm"].items() if k not in ("name", "what", "lr", "tune", "text")}
    assert base.key == hashlib.sha256(canonical([FORMAT, what]).encode()).hexdigest()[:20]
