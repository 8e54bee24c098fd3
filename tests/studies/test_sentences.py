"""What a study says in words: never more than its verdict, never another sign than its number."""

import dataclasses
import re

import pytest

from qkv.studies.engine.design import OF_TRAININGS, Contrast
from qkv.studies.question import Ask
from qkv.studies.questions import find, questions
from qkv.studies.verdict.comparison import Comparison
from qkv.studies.verdict.judging import ArmFigures, Effect, Findings, judged, numbered
from qkv.studies.verdict.sentences import effect_row, sentence
from qkv.studies.verdict.statistics import VERDICTS, bounds_of_rate
from qkv.words import amount

SAID = {
    "what-is-trained": ("too, and the finished model depends on it", "that did harm"),
    "frozen-embeddings": ("but with .* at random costs", "do better than trained ones"),
    "which-matrix": (
        "W_V and W_O are missed more than W_Q and W_K[,:]",
        "W_Q and W_K are missed more than W_V and W_O[,:]",
    ),
    "collocation": ("two words more alike", "two words less alike"),
    "what-moved-q": ("more because the encodings changed", "more because W_Q changed"),
    "gradient-path": ("need not pass through|[Ll]ittle gradient reaches", "works against the rest"),
    "only-embeddings": ("but not as well", "better than with everything trained"),
    "static-or-contextual": ("are more alike after the last layer", "are less alike after the last layer"),
    "token-identity": ("easier to name than before", "harder to name after"),
    "end-task": ("even more than two seeds of one task", "The end task has a part in"),
    "heads-and-scale": ("^Several heads beat one", "as the model beats four"),
    "three-roles": ("served better by three matrices", "better than three do"),
    "positions": ("is better with rotary positions", "is better without positions"),
    "dynamics": (
        "^With W_V and W_O held .* copying begins later than with W_Q",
        "^With W_Q and W_K held .* copying begins later than with W_V",
    ),
    "words-or-pixels": ("projection costs a model of pixels more", "projection costs a model of pixels less"),
    "attention-or-lstm": ("^Attention does better", "^An LSTM does better"),
    "techniques": ("^Muon makes a better model", "^AdamW does better"),
    "tokenizers": ("^At equal compute .* characters make the better", "^At equal compute .* BPE makes a better"),
    "known-results": ("(?<!whether )having no .* model more than a causal", "having no .* model less than a causal"),
    "calibrate": ("there are none more often", "there are none more rarely"),
}
"""Question -> what its claim says where the effect is above 0, and where it is below; a new question adds its own."""


def comparison(verdict: str, effect: float, n: int = 8) -> Comparison:
    far = verdict.startswith("differs")
    return Comparison(
        n=n, effect=effect, low=effect - (0.001 if far else 1), high=effect + (0.001 if far else 1), sd=0.1, p=0.01,
        p_equivalent=None, verdict=verdict, detectable=0.2, needed=20,
    )  # fmt: skip


def found(name: str, verdict: str, effect: float, others: str = "", *, quick: bool = True) -> Findings:
    """Findings of a question whose primary effect, and all others or those of another verdict, came out like that."""
    design = find(name).design(Ask(named=("a text", "0" * 64), quick=quick))
    effects = [
        Effect(contrast=c, values=(), result=comparison(others if i and others else verdict, effect), p_corrected=None)
        for i, c in enumerate(design.contrasts)
    ]
    return Findings(design=design, effects=tuple(effects), arms=(), not_reached=(), trainings=0, earlier=())


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("name", questions())
def test_a_sentence_agrees_with_its_verdict_and_its_sign(name, verdict, sign):
    findings = found(name, verdict, 0.25 * sign)
    claim = find(name).claim(findings)
    differs = verdict.startswith("differs")
    said = tuple(bool(re.search(words, claim)) for words in SAID[name])
    assert said == (differs and sign > 0, differs and sign < 0)
    bare = [dataclasses.replace(e, contrast=dataclasses.replace(e.contrast, terms=())) for e in findings.effects]
    assert find(name).claim(dataclasses.replace(findings, effects=tuple(bare))) == claim  # as of a kept file
    assert ("less than would matter" in claim) == (verdict == "differs but trivially")
    assert ("not settled" in claim) == (verdict == "unresolved")
    if not differs or sign < 0:  # then words that stand before the number promise no sign
        assert not re.search(r"\b(costs?|gains?|loses?|(more|less|better|worse)( by)?|lower by|higher by)$", claim)
    whole = sentence(find(name), findings)
    assert (
        whole.startswith(f"{claim}: {amount(0.25 * sign, unit=findings.primary.contrast.unit)} ")
        and f" Verdict: {verdict} (margin" in whole
    )
    assert ("it would take 20 replicates" in whole) == (verdict == "unresolved")


@pytest.mark.parametrize("name", questions())
def test_a_claim_is_the_same_of_a_kept_verdict_whose_contrasts_name_no_arms(name):
    findings = found(name, "differs", 0.25)
    kept = tuple(dataclasses.replace(e, contrast=dataclasses.replace(e.contrast, terms=())) for e in findings.effects)
    assert find(name).claim(dataclasses.replace(findings, effects=kept)) == find(name).claim(findings)


BESIDE = {
    "gradient-path": ("with no gradient through v the loss changes by {}",),
    "tokenizers": ("BPE's rows agree with those of words on which words are alike by 0.250 {} than at the start",),
    "collocation": ("among pairs of the text, as frequent, sharing them goes with {}",),
}
"""Question -> what a full run says in brackets of an effect that differs."""


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("verdict", [*VERDICTS, "left out"])
@pytest.mark.parametrize("name", BESIDE)
def test_brackets_tell_what_differs_beside_the_answer_with_its_sign_and_nothing_else(name, verdict, sign):
    claim = find(name).claim(found(name, "differs", 0.25, "unresolved", quick=False))
    told = found(name, "differs", 0.25, quick=False)
    first, *others = told.effects
    more = [dataclasses.replace(e, result=comparison(verdict, 0.25 * sign)) for e in others]
    said = find(name).claim(dataclasses.replace(told, effects=(first, *more)))
    way = ("more" if sign > 0 else "less") if name == "tokenizers" else amount(0.25 * sign)
    for words in BESIDE[name]:
        assert (words.format(way) in said) == (verdict == "differs") and words.format(way) not in claim
    assert dataclasses.replace(told, effects=(first,)).there("cut V - trained") is None


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("differs", "W_E moved less far than on random labels, by 0.250"),
        ("equivalent", "W_E moved as far as on random labels"),
        ("unresolved", "whether W_E moved further than on random labels is not settled"),
    ],
)
def test_what_stands_in_brackets_says_no_more_than_its_own_verdict(verdict, words):
    assert f"({words}" in find("what-is-trained").claim(found("what-is-trained", "differs", -0.25, verdict))


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("differs", "the one does worse than three narrow ones"),
        ("differs but trivially", "the one does a little worse than three narrow ones"),
        ("equivalent", "three narrow ones with as few parameters do as well as the one"),
        ("unresolved", "whether that is a matter of parameters alone is open"),
    ],
)
def test_roles_are_told_from_parameters_by_the_arm_with_as_few_of_them(verdict, words):
    assert words in find("three-roles").claim(found("three-roles", "differs", 0.25, verdict))


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("differs", "sets one that sees both sides back by 0.250 nats"),
        ("differs but trivially", "sets one that sees both sides back by a little 0.250 nats"),
        ("equivalent", "one that sees both sides loses nothing by having none"),
        ("unresolved", "what having none does to one that sees both sides is open"),
    ],
)
def test_positions_of_a_model_that_sees_both_sides_have_a_verdict_of_their_own(verdict, words):
    assert words in find("positions").claim(found("positions", "differs", 0.25, verdict))


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_every_kind_of_positions_is_compared_with_having_none(quick):
    """No kind is the baseline of the others, so none makes them look good; the first is not the weakest."""
    design = find("positions").design(Ask(named=("a text", "0" * 64), quick=quick))
    costs = [c for c in design.contrasts if c.terms[0][2] == "loss" and len(c.terms) == 2]
    assert {c.arms[0].partition(", ")[2] for c in costs} == {"none"}
    causal = [c.arms[1] for c in costs if c.arms[0] == "causal, none"]
    assert causal == ["causal, rotary", "causal, learned", "causal, sinusoidal"]
    assert design.primary is costs[0] and design.primary.arms == ("causal, none", "causal, rotary")


@pytest.mark.parametrize(
    ("verdict", "effect", "words"),
    [
        ("differs", 0.25, "(with learned ones better than without, by 0.250 nats; with sinusoidal ones better"),
        ("differs", -0.25, "(with learned ones worse than without, by 0.250 nats; with sinusoidal ones worse"),
        ("differs but trivially", 0.25, "(with learned ones a little better than without, by 0.250 nats; with"),
        ("equivalent", 0.25, "(with learned ones as well as without; with sinusoidal ones as well as without; "),
        ("unresolved", 0.25, "(whether learned ones help is open; whether sinusoidal ones help is open; "),
    ],
)
def test_every_kind_of_positions_has_a_verdict_of_its_own(verdict, effect, words):
    findings = found("positions", "differs", effect, verdict)
    assert words in find("positions").claim(findings)
    first, *others = findings.effects
    unsure = tuple(dataclasses.replace(e, p_corrected=0.06) for e in others)
    claim = find("positions").claim(dataclasses.replace(findings, effects=(first, *unsure)))
    assert ("whether learned ones help is open" in claim) == (verdict in ("differs", "unresolved"))


@pytest.mark.parametrize("name", questions())
def test_brackets_tell_no_effect_that_differs_only_where_nothing_else_is_asked(name):
    """What stands before a condition of others (`learned`) is no statement."""

    def claim(**more) -> str:
        findings = found(name, "differs", 0.25)
        first, *others = findings.effects
        asked = [e if e.contrast.name.startswith("learned (") else dataclasses.replace(e, **more) for e in others]
        return find(name).claim(dataclasses.replace(findings, effects=(first, *asked)))

    assert claim(p_corrected=0.06) == claim(result=comparison("unresolved", 0.25))
    assert claim(p_corrected=0.04) == claim(p_corrected=None)


def test_a_row_says_where_it_does_not_stand_beside_all_others():
    contrasts = [Contrast(name=name, what="", terms=(), margin=0.05) for name in "abcdef"]
    draws = ((0.5, 0.6, 0.4, 0.5, 0.55, 0.6), (0.9, 0.1, 1.9, 0.2, 0.1, 2.0), *([1, -2, 1.5, -1, 2, -1.4],) * 4)
    effects = judged([(c, numbered(values)) for c, values in zip(contrasts, draws, strict=True)])
    assert [e.verdict for e in effects[:3]] == ["differs", "differs (not after correction)", "unresolved"]
    assert effects[0].p_corrected == effects[0].result.p == effects[1].result.p == 2 / 64, "the first is asked alone"
    assert effects[1].told.verdict == "unresolved" and effects[1].result.verdict == "differs"
    assert effect_row(effects[1])["verdict"] == "differs (not after correction)"
    trivial = dataclasses.replace(effects[1], result=comparison("differs but trivially", 0.01))
    assert trivial.told.verdict == "equivalent", "that it does not matter was shown"


def test_how_many_parameters_are_as_many_is_told_by_the_run_and_not_by_the_design_of_today():
    findings = found("attention-or-lstm", "differs", 0.25)
    assert re.search(
        r"an LSTM of as many parameters \(28,728 and 28,704, \+0\.1 %\) \(", find("attention-or-lstm").claim(findings)
    )
    first, *others = findings.effects
    for words, said in (("with as many parameters (9 and 8, +12.5 %)", " (9 and 8, +12.5 %)"), ("of old", "")):
        kept = dataclasses.replace(first, contrast=dataclasses.replace(first.contrast, what=words))
        claim = find("attention-or-lstm").claim(dataclasses.replace(findings, effects=(kept, *others)))
        assert claim.startswith(f"Attention does better than an LSTM of as many parameters{said} (attention")


def test_what_needs_something_that_was_not_measured_is_not_said_to_need_what_was_not_learned():
    """Where the time ended before the condition was trained, or after one replicate of it."""
    design = find("known-results").design(Ask(named=("a text", "0" * 64)))
    base = Findings(design=design, effects=(), arms=(), not_reached=(), trainings=0, earlier=())

    def claim(values: dict[int, float]) -> str:
        wide = [values if {"wide tables"} & {*c.arms} else numbered([0.3] * 6) for c in design.contrasts]
        effects = judged(list(zip(design.contrasts, wide, strict=True)))
        return find("known-results").claim(dataclasses.replace(base, effects=effects))

    for values in ({}, {1: 90.0}):
        assert "1 would need what is not shown to be learned here" in claim(values)
    assert "1 would need what was not learned here" in claim(dict(numbered([0.0] * 6)))
    assert "would need" not in claim(dict(numbered([60.0, 61, 62, 63, 64, 65])))


def test_where_all_replicates_diverged_the_time_is_not_blamed():
    findings = found("gradient-path", "unresolved", 0.0)
    nothing = dataclasses.replace(findings.primary.result, n=0, effect=None, low=None, high=None)
    first = dataclasses.replace(findings.primary, diverged=6, result=nothing)
    said = sentence(find("gradient-path"), dataclasses.replace(findings, effects=(first, *findings.effects[1:])))
    assert "in every replicate of gradient-path that was completed a training diverged (6 of 6)" in said


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
@pytest.mark.parametrize("name", ["heads-and-scale", "tokenizers", "attention-or-lstm", "words-or-pixels"])
def test_a_second_question_in_brackets_is_told_by_its_own_verdict(name, quick):
    """The claims read their secondary effect by its name, in both designs."""
    design = find(name).design(Ask(named=("a text", "0" * 64), quick=quick))
    said = []
    for verdict in VERDICTS:
        effects = tuple(
            Effect(contrast=c, values=(), result=comparison(verdict if i else "differs", 0.25), p_corrected=None)
            for i, c in enumerate(design.contrasts)
        )
        findings = Findings(design=design, effects=effects, arms=(), not_reached=(), trainings=0, earlier=())
        said.append(find(name).claim(findings))
    assert len(set(said)) == len(VERDICTS) and all("(" in claim for claim in said)
    assert ["open)" in claim for claim in said] == [verdict == "unresolved" for verdict in VERDICTS]


def test_tasks_that_agree_no_less_than_seeds_are_alike_only_where_seeds_agree_on_something():
    def claim(others: str) -> str:
        return find("end-task").claim(found("end-task", "equivalent", 0.05, others))

    assert "does not depend on the end task" in claim("differs") and "across tasks they agree, by 0.050" in claim(
        "differs"
    )


def test_where_seeds_agree_on_nothing_the_end_task_is_not_asked():
    """What needs the ceiling is left out, the answer itself too, and designs keep the protocol that they had."""
    question, empty = find("end-task"), found("end-task", "equivalent", 0.0)
    design, nothing = empty.design, numbered((0.01, -0.02, 0.0, 0.02, -0.01, 0.01))
    effects = judged([(c, nothing) for c in design.contrasts])
    out = [e.contrast for e in effects if e.result.verdict == "left out"]
    assert [c.name.endswith("less its ceiling") for c in design.contrasts].count(True) == len(out) == 3
    said = sentence(question, dataclasses.replace(empty, effects=effects))
    assert said.startswith(
        "Of the end task nothing can be said, for two seeds of one task share next to nothing in W_U. V"
    )
    one = dataclasses.replace(empty, effects=judged([(c, {1: 0.6}) for c in design.contrasts]))
    assert "said: whether two seeds of one task share anything in W_U is open" in sentence(question, one)
    older = tuple(dataclasses.replace(c, beside=()) for c in design.contrasts)
    assert design.contrasts != older and dataclasses.replace(design, contrasts=older).protocol == design.protocol


@pytest.mark.parametrize(
    ("moved", "earned", "words"),
    [
        ("differs", "differs", "(that is learning: W_E moved further than on random labels, by 0.250"),
        ("differs", "differs", "and its movement earned +0.250 nats of the 0.250 by which the loss fell): set back"),
        (
            "equivalent",
            "differs",
            "(W_E moved as far as on random labels, and its movement earned +0.25",
        ),
        ("differs", "equivalent", "of its start's norm, and its movement earned next to nothing): set back"),
        ("differs", "unresolved", "of its start's norm, and what its movement earned is open): set back"),
    ],
)
def test_learning_is_spoken_of_where_rows_moved_beyond_the_null_and_that_earned_something(moved, earned, words):
    findings = found("what-is-trained", "differs", 0.25)
    asked = {"W_E moved (adamw)": moved, "W_E earned (adamw)": earned}
    effects = tuple(
        dataclasses.replace(e, result=comparison(asked.get(e.contrast.name, "differs"), 0.25)) for e in findings.effects
    )
    claim = find("what-is-trained").claim(dataclasses.replace(findings, effects=effects))
    assert words in claim and ("that is learning" in claim) == (moved == earned == "differs")


@pytest.mark.parametrize(
    ("verdict", "effect", "words"),
    [
        ("differs", 0.25, "costs 0.250 nats"),
        ("differs", -0.053, "saves 0.053 nats"),
        ("equivalent", 0.01, "costs nothing that matters"),
        ("unresolved", 0.01, "costs nothing that this run can tell"),
    ],
)
def test_the_start_that_a_matrix_is_frozen_at_is_told_and_the_other_one_where_it_was_asked(verdict, effect, words):
    findings, question = found("which-matrix", "differs", -0.25), find("which-matrix")
    claim = question.claim(findings)
    assert claim.startswith("Frozen at N(0, 0.02), where scores are near 0 and attention is nearly an even mean, W_Q")
    assert "Glorot" not in claim
    costs = tuple(
        dataclasses.replace(
            findings.primary,
            contrast=dataclasses.replace(findings.primary.contrast, name=f"glorot {pair} frozen - trained"),
            result=result,
        )
        for pair, result in (("QK", comparison("differs", 0.5)), ("VO", comparison(verdict, effect)))
    )
    told = question.claim(dataclasses.replace(findings, effects=(*findings.effects, *costs)))
    assert f"freezing W_Q and W_K costs 0.500 nats and freezing W_V and W_O {words})" in told


def test_known_results_are_counted_by_their_verdicts():
    def claim(verdict: str, effect: float, others: str) -> str:
        return find("known-results").claim(found("known-results", verdict, effect, others))

    assert "Of 2 known results 1 shows here as published, 0 the other way round, 1 is too" in claim(
        "differs", 1.0, "equivalent"
    )
    assert " 0 show here as published, 1 the other way round, 0 are too small to matter, 1 cannot be told" in claim(
        "differs", -1.0, "unresolved"
    )


def test_a_design_on_a_text_that_is_only_named_is_that_of_the_text(long_text, kept):
    """So what is told about a kept run is told of its own design."""
    read = find("gradient-path").design(Ask(source=str(long_text), quick=True, cache=kept))
    named = Ask(named=(read.source_name, read.source_sha256), slices=(read.slices, read.overlapping), quick=True)
    assert read.slices > 1 and find("gradient-path").design(named) == read


def test_a_kept_verdict_is_judged_anew_and_says_what_it_was():
    from qkv.errors import ConfigError
    from qkv.studies.verdict.kept import judged_anew, was_judged
    from qkv.studies.verdict.sentences import verdict_file

    question = find("which-matrix")
    empty = found("which-matrix", "unresolved", 0.0)
    values = (0.1, 0.2, 0.1, 0.2, 0.1)
    findings = dataclasses.replace(empty, effects=judged([(c, numbered(values)) for c in empty.design.contrasts]))
    file = verdict_file(question, findings, "runs/x")
    assert judged_anew(question, file) == file and was_judged(file, judged_anew(question, file)) == ""
    old = file | {"verdict": "unresolved", "sentence": "Nobody knows.", "intervals": "guessed"}
    old["contrasts"] = [row | {"verdict": "unresolved", "low": None} for row in file["contrasts"]]
    anew = judged_anew(question, old)
    assert anew == file
    assert "guessed" in was_judged(old, anew) and "*VO - QK* is differs and was unresolved" in was_judged(old, anew)
    with pytest.raises(ConfigError, match="at another scale"):
        judged_anew(question, old | {"sizes": file["sizes"] | {"d_model": 48}})
    in_words = {name: value for name, value in old.items() if name != "sizes"}  # as older files have it
    assert judged_anew(question, in_words) == {name: value for name, value in file.items() if name != "sizes"}
    with pytest.raises(ConfigError, match=r"at another scale .*d_model 48, .*; now: .*d_model 32, "):
        judged_anew(question, in_words | {"scale": file["scale"].replace("d_model 32", "d_model 48")})
    with pytest.raises(ConfigError, match="answers by 'QK - VO', and the question is answered by 'VO - QK' now"):
        judged_anew(question, old | {"contrasts": [old["contrasts"][0] | {"name": "QK - VO"}, *old["contrasts"][1:]]})
    with pytest.raises(ConfigError, match="does not say how many"):
        judged_anew(question, old | {"scale": "On another text"})
    fewer = old | {"contrasts": old["contrasts"][:1], "scale": file["scale"].replace("5 of 5", "5 of 9")}
    assert len(judged_anew(question, fewer)["contrasts"]) == 1, "what was not asked then is not made up"
    assert "5 of 9 paired replicates" in judged_anew(question, fewer)["sentence"]


def test_a_page_says_how_the_layout_of_an_arm_differs_from_that_of_its_scale():
    """Old files left it out."""
    from qkv.studies.verdict.kept import judged_anew
    from qkv.studies.verdict.sentences import verdict_file

    question, findings = find("end-task"), found("end-task", "differs", -0.25)
    arms = tuple(
        ArmFigures(arm=arm, losses=(), rates=(), at_edge=0, diverged=0, trainings=0, frozen=(), curve=())
        for arm in findings.design.arms
    )
    made = verdict_file(question, dataclasses.replace(findings, arms=arms), "runs/x")
    whats = [row["what"] for row in made["arms"]]
    assert whats[0] == "predicts the next word; positions rotary, start xavier"
    assert made["literature"] == question.literature
    old = made | {"arms": [row | {"what": a.what} for row, a in zip(made["arms"], findings.design.arms, strict=True)]}
    old |= {"literature": "Nobody knew.", "contrasts": [row | {"values": [0.1, 0.2]} for row in made["contrasts"]]}
    old |= {"scale": made["scale"].replace("8 of", "2 of")}
    anew = judged_anew(question, old)
    assert [row["what"] for row in anew["arms"]] == whats and anew["literature"] == question.literature
    assert judged_anew(question, anew) == anew


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "known-results",
            "char tokens, next and hidden tokens predicted; textbook layout (no or learned positions) of",
        ),
        ("known-results", "context 8, 300 steps of 64 windows, start Glorot's; AdamW, at fixed"),
        ("tokenizers", "in bpe tokens (vocabulary 512) and char tokens; textbook layout of 2 layers, d_model 32,"),
        ("tokenizers", ", 206 and 300 steps of 16 windows, start N(0, 0.02); AdamW, at fixed"),
        ("end-task", "(rotary positions) of 2 layers, d_model 32, 2 heads, context 32, 300 and 900 steps"),
        ("end-task", "start Glorot's where an arm does not say otherwise; AdamW"),
        ("techniques", "layout (rotary positions, RMSNorm, squared ReLU, QK-norm) of 2 layers"),
        ("techniques", "start W_O, W_out and W_U at 0; AdamW and Muon, "),
        ("attention-or-lstm", "(LSTM: an LSTM in the place of attention, no positions, no norm, no MLP, no skip conn"),
        (
            "attention-or-lstm",
            "; attention: rotary positions) of 2 layers, d_model 38 and 32, d_mlp 124, 1 and 2 heads",
        ),
        (
            "words-or-pixels",
            "On a text in bpe tokens (vocabulary 512) and on the handwritten digits that come with scikit-learn; ",
        ),
        ("collocation", "On made sentences (pairs); textbook layout of 2 layers, "),
        (
            "calibrate",
            " of 1 layer, d_model 8, 1 head, context 8, 40 steps of 8 windows, start N(0, 0.02); AdamW; 16 of",
        ),
    ],
)
def test_a_sentence_names_what_the_arms_of_its_effect_were_trained_at(name, words):
    findings = found(name, "differs", 0.25)
    if name == "calibrate":
        findings = dataclasses.replace(
            findings,
            effects=(
                dataclasses.replace(findings.primary, result=comparison("differs", 0.25, 16)),
                *findings.effects[1:],
            ),
        )
    assert words in sentence(find(name), findings)


def test_a_kept_run_tells_the_sizes_that_it_had():
    """Steps of an arm may follow from a text that is not read again."""
    from qkv.studies.verdict.kept import judged_anew
    from qkv.studies.verdict.sentences import verdict_file

    question, empty = find("tokenizers"), found("tokenizers", "unresolved", 0.0)
    arms = tuple(
        ArmFigures(arm=arm, losses=(), rates=(), at_edge=0, diverged=0, trainings=0, frozen=(), curve=())
        for arm in empty.design.arms
    )
    effects = judged([(c, numbered((0.1, 0.2, 0.1, 0.2, 0.1, 0.2))) for c in empty.design.contrasts])
    file = verdict_file(question, dataclasses.replace(empty, effects=effects, arms=arms), "runs/x")
    sized = [row | {"sizes": row["sizes"] | {"steps": 177}} if row["sizes"] else row for row in file["arms"]]
    assert "177 and 300 steps" in judged_anew(question, file | {"arms": sized})["sentence"]


def test_a_share_of_trainings_has_the_interval_of_a_rate():
    """Five trainings of which none copies do not show that none would."""
    contrast = Contrast(name="s", what="", terms=(), margin=0.05, unit=OF_TRAININGS)
    never, mostly, always = (
        effect.result for effect in judged([(contrast, numbered([1.0] * n + [0.0] * (5 - n))) for n in (0, 4, 5)])
    )
    assert (never.low, never.verdict) == (0.0, "unresolved") and never.high == pytest.approx(1 - 0.025**0.2)
    assert (mostly.effect, mostly.verdict) == (0.8, "differs")
    assert (mostly.low, mostly.high) == pytest.approx(bounds_of_rate(4, 5))
    assert always.high == 1.0 and always.low == pytest.approx(0.025**0.2) and always.detectable is None
    assert (never.p, mostly.p) == (None, None), "one training refutes a rate of 0, and none supports it"


def test_what_was_not_reached_is_said_with_the_steps_that_it_was_given():
    findings = found("dynamics", "unresolved", -60.0)

    def claim(of_qk: float, of_pairs: float, begins: float = 500.0) -> str:
        known = dict.fromkeys(("QK held: copying reached", "VO held: copying reached"), of_qk)
        known |= {"text, nothing held: bigram reached": of_pairs, "nothing held: copying": begins}
        known["QK held: copying"] = 90.0
        effects = tuple(
            dataclasses.replace(e, result=comparison("differs", known[e.contrast.name], 5))
            if e.contrast.name in known
            else e
            for e in findings.effects
        )
        return find("dynamics").claim(dataclasses.replace(findings, effects=effects))

    assert "steps" not in claim(1.0, 1.0).partition(";")[0]
    assert "(2 of 10 trainings did not copy within 400 steps: their end counts; on text 3 of 5 did not" in claim(
        0.8, 0.4
    )
    assert "did not get to what counting pairs gives within 450 steps)" in claim(0.8, 0.4)
    assert "(no training of the two copied within 400 steps, so the steps say nothing)" in claim(0.0, 1.0)
    early = claim(1.0, 1.0, begins=100.0)  # 190 and 40 with them held, which ends at 133
    assert "(with W_V and W_O held it begins at step 40, before they are let go at 133)" in early
    assert "W_Q and W_K held it begins" not in early


def test_two_arms_that_never_copy_are_not_equally_late():
    """Both count with the horizon, so their difference is 0 by how they are counted."""
    design = find("dynamics").design(Ask(named=("a text", "0" * 64)))
    gate = next(c for c in design.contrasts if c.name == design.primary.needs)
    free = next(c for c in design.contrasts if c.name == "QK held: copying").needs

    def judge(shares: list[float]) -> tuple[Effect, ...]:
        values = {design.primary.name: [0.0] * 8, gate.name: shares}
        rows = [(c, numbered(values[c.name])) for c in design.contrasts if c.name in values]
        return judged(rows)

    never, once = judge([0.0] * 8), judge([1.0] * 8)
    assert never[0].result.verdict == "left out" and once[0].result.verdict == "equivalent"
    assert once[1].result.n == 8, "two trainings of one replicate are one try"
    assert free == "nothing held: copying reached"
    others = [
        Effect(contrast=c, values=(), result=comparison("differs", 0.0), p_corrected=None) for c in design.contrasts[1:]
    ]
    findings = Findings(
        design=design, effects=(never[0], *others), arms=(), not_reached=(), trainings=0, earlier=()
    )  # fmt: skip
    said = sentence(find("dynamics"), findings)
    assert "cannot be told (no training of the two copied within 1000 steps" in said and "needed" not in said
    assert ": ?" not in said and "Verdict: left out" in said


@pytest.mark.parametrize(("reached", "verdict"), [(1.0, "differs"), (0.0, "differs"), (1.0, "unresolved")])
def test_one_layer_below_the_level_of_copying_is_told_with_how_far_it_ends_from_two(reached, verdict):
    design = find("dynamics").design(Ask(named=("a text", "0" * 64)))
    told = {"1 layer: loss": comparison(verdict, 0.31), "1 layer: copying reached": comparison("differs", reached)}
    rest = comparison("differs", 1.0)
    effects = tuple(
        Effect(contrast=c, values=(), result=told.get(c.name, rest), p_corrected=0.01) for c in design.contrasts
    )
    findings = Findings(design=design, effects=effects, arms=(), not_reached=(), trainings=0, earlier=())
    words = "one layer reaches `copying` too, and ends 0.310 nats a letter above two"
    assert (words in sentence(find("dynamics"), findings)) == (reached == 1.0 and verdict == "differs")


def test_nothing_is_said_of_an_arm_that_learned_nothing():
    findings = found("static-or-contextual", "differs", -0.1)

    def claim(verdict: str, effect: float) -> str:
        effects = tuple(
            dataclasses.replace(e, result=comparison(verdict, effect)) if e.contrast.name == "learned (masked)" else e
            for e in findings.effects
        )
        return find("static-or-contextual").claim(dataclasses.replace(findings, effects=effects))

    words = "; nothing is said of the arm masked, which learned nothing beyond frequencies"
    assert words not in claim("differs", 0.6)
    assert all(words in claim(*other) for other in (("differs", -0.6), ("equivalent", 0.02)))
    assert "arm masked, which is not shown to have learned anything beyond frequencies" in claim("unresolved", 0.6)


def test_all_that_reads_a_masked_model_needs_it_to_have_learned():
    for quick in (True, False):
        design = find("static-or-contextual").design(Ask(named=("a text", "0" * 64), quick=quick, labelled=True))
        of_masked = [c for c in design.contrasts if "masked" in c.arms and c.name != "learned (masked)"]
        assert len(of_masked) >= 7 and {c.needs for c in of_masked} == {"learned (masked)"}
        of_classes = [c for c in design.contrasts if "classify" in c.arms and c.name != "learned (classify)"]
        assert {c.needs for c in of_classes} == {"learned (classify)"}
        assert not any(c.needs for c in design.contrasts if c not in (*of_masked, *of_classes))


def test_steps_are_told_in_whole_numbers_and_none_becomes_zero():
    assert [amount(x, unit="steps") for x in (-185.363, 50.0, 0.0, -0.887, 0.042)] == [
        "-185", "+50", "+0", "-0.89", "+0.042",
    ]  # fmt: skip
    assert amount(-185.363) == "-185.363"
    findings = found("dynamics", "differs", -185.363)
    words = sentence(find("dynamics"), findings)
    assert ": -185 steps (95 % interval -" in words and "(margin 20 steps)" in words
    assert not re.search(r"\d\.\d+ steps", words)


@pytest.mark.parametrize("verdict", [*VERDICTS, "left out"])
def test_sums_that_tables_alone_tell_are_told_where_width_helps(verdict):
    told = found("only-embeddings", "differs", 0.25, quick=False)
    rates = {"a wide random body adds": 96.0, "embeddings alone add when wide": 80.0}
    effects = tuple(
        dataclasses.replace(e, result=comparison(verdict, rates[e.contrast.name])) if e.contrast.name in rates else e
        for e in told.effects
    )
    claim = find("only-embeddings").claim(dataclasses.replace(told, effects=effects))
    words = "never shown one of width 256, its tables alone trained, tells 96, one of width 16 tells 16)"
    assert (words in claim) == (verdict == "differs")
