"""Things done to matrices, in one grammar for training and for looking: `SEL=op(args)@from..to`."""

from qkv.changes.grammar import Change, freeze_changes, parse_change, parse_changes
from qkv.changes.ops import OPS
from qkv.changes.plan import Plan, plan_changes
from qkv.changes.stored import Loader, RunMatrix

__all__ = [
    "OPS",
    "Change",
    "Loader",
    "Plan",
    "RunMatrix",
    "freeze_changes",
    "parse_change",
    "parse_changes",
    "plan_changes",
]
