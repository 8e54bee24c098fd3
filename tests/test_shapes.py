"""Shapes in signatures: every public function that takes tensors names theirs, and calls are held to them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

from qkv import shapes
from qkv.instruments.spectra import Blocks
from qkv.kernels.blocks import joined
from qkv.models.attention import SelfAttention, attend
from qkv.models.masks import Visible
from qkv.models.positions import Rotary

SRC = Path(__file__).parent.parent / "src" / "qkv"
ROOMS = ("kernels", "models", "instruments", "inspection")
EVERYTHING = Visible(False, None)


def test_axes_of_one_name_have_one_size_within_a_call():
    q, k = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 7, 5)
    assert attend(q, k, k, EVERYTHING, 1.0).shape == q.shape
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'v'"):
        attend(q, k, k[:, :, 1:], EVERYTHING, 1.0)
    assert attend(q[:1], k[:1], k[:1], EVERYTHING, 1.0).shape == q[:1].shape  # another call, other sizes


def test_dtypes_methods_dataclasses_and_results_are_checked_too():
    attention, x = SelfAttention(8), torch.zeros(2, 3, 8)
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'mask'"):
        attention(x, torch.ones(2, 3))
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'columns'"):
        Blocks(torch.zeros(4, 2, dtype=torch.float64))
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        joined(None, lambda site, out: out[:, 1:], "L0.attn_out", x)
    assert Rotary(8, 100.0).stretch(8) is None


@pytest.mark.usefixtures("unchecked")
def test_a_test_can_hand_over_what_does_not_fit():
    assert joined(None, lambda site, out: out[:, 1:], "L0.attn_out", torch.zeros(2, 3, 8)).shape == (2, 2, 8)


def test_without_pytest_nothing_is_loaded_or_checked():
    code = (
        "import sys, torch, qkv.models, qkv.instruments, qkv.inspection; from qkv.kernels.blocks import joined\n"
        "assert not {'jaxtyping', 'beartype'} & set(sys.modules)\n"
        "assert joined.__annotations__['out'].__metadata__ == ('batch query_pos d_model',)\n"
        "assert joined(None, None, '', torch.zeros(3)).shape == (3,)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def taking_tensors() -> Iterator[tuple[str, list[ast.expr]]]:
    """Each public function or method of these rooms that takes tensors, and what is said of them."""
    trees = {path: ast.parse(path.read_text("utf-8")) for room in ROOMS for path in sorted((SRC / room).rglob("*.py"))}
    assigned = [node for tree in trees.values() for node in tree.body if isinstance(node, ast.Assign)]
    named = {node.targets[0].id for node in assigned if says_shape(node.value, set())}
    for path, tree in trees.items():
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for node in (node for holder in (tree, *classes) for node in holder.body):
            if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__call__"):
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                said = [arm for each in taken if each.annotation for arm in arms(each.annotation)]
                said = [arm for arm in said if word(arm) == "Tensor" or says_shape(arm, named)]
                if said:
                    yield f"{path.relative_to(SRC)}:{node.lineno} {node.name}", said


def arms(annotation: ast.expr) -> list[ast.expr]:
    """What may stand: the parts of a union."""
    if isinstance(annotation, ast.BinOp):
        return [*arms(annotation.left), *arms(annotation.right)]
    return [annotation]


def word(annotation: ast.expr) -> str:
    """A name in an annotation; empty for anything else."""
    return annotation.id if isinstance(annotation, ast.Name) else ""


def says_shape(annotation: ast.expr, named: set[str]) -> bool:
    """`Float[Tensor, "batch pos"]`, or a name that stands for such."""
    subscripted = isinstance(annotation, ast.Subscript) and word(annotation.value) in shapes.__all__
    return subscripted or word(annotation) in named


def test_every_public_function_that_takes_a_tensor_names_its_shape():
    found = list(taking_tensors())
    assert len(found) > 140
    assert [name for name, said in found if any(word(each) == "Tensor" for each in said)] == []


def test_any_shape_at_all_is_said_of_few():
    anything = [name for name, said in taking_tensors() if all("'...'" in ast.unparse(each) for each in said)]
    assert len(anything) < 0.1 * len(list(taking_tensors())), anything
