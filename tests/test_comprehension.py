"""What a newcomer should know after the README: each question is answered there, in words that can be quoted."""

import re
from pathlib import Path

import pytest

README = " ".join((Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8").split())
CONDITION = r"hold for models with 2 layers and d_model 64, starting at N\(0, 0\.02\) .* trained with AdamW"
QUESTIONS = {
    "Does training change the embeddings too?": (r"Both change", CONDITION),
    "Is that change learning?": (r"it is learning.*[\d.]+ of that is due to the change of W_E", CONDITION),
    "What if the trained W_E is reset?": (
        r"Setting W_E back to its start costs 4\.2",
        r"setting it back costs 3\.9",
        CONDITION,
    ),
    "Must the embeddings be trained?": (
        r"No, but training them helps\. Embeddings fixed at N\(0, 1\) cost [\d.]+ nats",
        r"untied unless",
    ),
    "Are q, k and v trained?": (r"The vectors q = x W_Q, k and v are computed, not trained\.",),
    "Is W_Q a part of the embedding matrix?": (r"W_Q, W_K and W_V are \[not the embedding matrix\]",),
    "By which technique is it trained?": (
        r"All matrices, W_E included.*by backpropagation alone",
        r"unless frozen",
    ),
    "What is the random-label control?": (r"the same training with labels drawn uniformly at every step",),
    "Did a matrix learn because it moved far?": (
        r"Random labels move matrices too, so distance alone is not learning\.",
    ),
    "When is a loss good?": (
        r"Compared with the best n-gram, which only counts tokens\.",
        r"Most do worse than an n-gram",
    ),
    "For which models do the answers hold?": (CONDITION, r"Other models may differ\."),
    "Do they hold for what `qkv train` makes?": (r"The last column is what the recipe of `qkv train` gives",),
    "How do I try it without training W_E?": (r"qkv train my\.txt --freeze W_E", r"qkv compare runs/my-1 runs/my-2"),
}
"""Question -> the sentence that answers it, and the condition of the answer where it has one."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_readme_answers_with_its_condition(question):
    assert [words for words in QUESTIONS[question] if not re.search(words, README)] == []
