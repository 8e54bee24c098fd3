"""What each command's `--json` holds, as forms (`qkv.jsontypes.is_like`), and the JSON Schema that follows from a form.

A form names what is always there, `WhereThere` what may be. Objects may hold more than their form says. A command that
answers several questions has a form for each.
"""

import types
from collections.abc import Mapping

from qkv.jsontypes import JsonObject, WhereThere

_FIGURE = (float, types.NoneType)
_TEXT = (str, types.NoneType)
_FIGURES = {str: _FIGURE}
_RECEIPT = {
    "files": {str: {"train": int, "validation": int, "test": int, "left_out": int, "why": str}},
    "rows": {"read": int, "set_aside": int, "left_out": int, "why": str},
    "columns": {str: str},
    "classes": {str: int},
}
_RANKED = [{"output": str, "probability": float}]
_SHARES = {"loss": float, "blocks": [{"address": str}], "rows": [{"id": int, "token": str, "grad_norm": float}]}
_EFFECT = {"effect": _FIGURE, "low": _FIGURE, "high": _FIGURE, "unit": str}

FORMS: Mapping[str, tuple[object, ...]] = {
    "train": (
        {
            "run": str, "steps": int, "tokens": int, "val_loss": _FIGURE, "last_val_loss": _FIGURE,
            "best_step": (int, types.NoneType), "bits_per_byte": _FIGURE, "train_seconds": float,
            "total_seconds": float, "tokens_per_second": float, "parameters": int, "stopped_because": str,
            "resumed_from_step": (int, types.NoneType), "baselines": _FIGURES, "receipt": _RECEIPT,
        },
    ),
    "predict": (
        {"run": str, "task": str, "inputs": [str], "outputs": [_TEXT]},
        {"run": str, "task": str, "inputs": [str], "outputs": [_TEXT], "scores": [(_RANKED, [_RANKED])]},
        {"run": str, "task": str, "inputs": [str], "outputs": [str],
         "spans": [[{"start": int, "end": int, "text": str, "label": str, "probability": float}]]},
    ),
    "eval": ({"run": str, "task": str, "weights": str, "changes": [str], "loss": float, "n_targets": int},),
    "embed": (
        {"run": str, "per_token": bool,
         "outputs": [{"text": str, "tokens": [str], "offsets": ([[int]], types.NoneType),
                      "vectors": {str: [(float, [float])]}}]},
        {"run": str, "layers": [{"n_vectors": int}], "step_0": [{"n_vectors": int}]},
    ),
    "probe": (
        {"run": str, "file": str, "labels": frozenset({"tokens", "texts"}), "classes": [str], "n_train": int,
         "n_test": int, "majority": float, "by_word": _FIGURE,
         "layers": [{"layer": str, "accuracy": float, "low": float, "high": float, "control": float,
                     "selectivity": float}]},
    ),
    "vectors": ({"vectors": str, "trained_words": (int, types.NoneType)},),
    "step": ({"run": str, "loss": float, "targets": int, "rate": float, "parts": [{"address": str, "norm": float}],
              "optimizer": _TEXT, "gradient_path": _SHARES},),
    "show": (
        {"run": str, "summary": {"steps": int}, "answers": [{"key": str, "sentence": str}],
         "matrices": {str: _FIGURES}},
        {"address": str, "shape": [int], "norm": float, "measures": {str: {"step": [int], "value": [_FIGURE]}}},
        {"tokens": [str], "heads": [{"address": str}]},
        {"run": str, "answers": [{"key": str, "sentence": str, "numbers": _FIGURES}]},
        {"damaged": [object]},
    ),
    "runs": (
        {
            "folder": str, "differing": [str],
            "runs": [{"path": str, "name": str, "task": str, "state": str, "settings": {str: str}, "loss": _FIGURE,
                      "ngram": _FIGURE, "steps": int, "when": str}],
        },
    ),
    "compare": (
        {"runs": [str], "settings": {str: [object]}, "figures": {str: [object]},
         "matrices": [{"address": str, "words": str}], "circuits": [{"circuit": str}], "cautions": [str],
         "damaged": [object]},
    ),
    "study": (
        {
            "study": str, "verdict": str, "sentence": str, **_EFFECT, "margin": float, "seeds": int, "p": _FIGURE,
            "run": str, "condition": str, "baseline": ({"ngram": _FIGURE, "trained": _FIGURE}, types.NoneType),
            "expected": (_FIGURES, {str: str}, types.NoneType), "otherwise": [str],
        },
        {"studies": {str: {"asks": str, "answer": str}}},
        {
            "study": str, "ladder": bool, "sentence": str, "condition": str, **_EFFECT, "effect_unit": str,
            "margin": float, "seeds": int, "run": str, "baseline": {"ngram": float, "trained": _FIGURE},
            "verdict": frozenset({"shrinks", "grows", "reverses", "does not depend on size", "cannot tell"}),
            "cells": [{"size": str, "tokens_per_weight": float, "weights": int, "epochs": float, "effect": _FIGURE,
                       "low": _FIGURE, "high": _FIGURE, "values": [float], "loss": _FIGURE, "below_ngram": bool}],
            "predictions": [{"size": str, "value": float, "low": float, "high": float, "measured": _FIGURE, "at": str,
                             "held": (bool, types.NoneType)}],
            "far": ({"weights": float, "decades": float, "value": float, "low": float, "high": float}, types.NoneType),
            "crossing": ({"value": float, "low": float, "high": _FIGURE}, types.NoneType), "trainings": int,
            "minutes": {"predicted": float, "trained": float},
        },
    ),
    "trial": (
        {
            "decision": frozenset({"keep", "discard", "undecided"}), "effect": float, "low": _FIGURE, "high": _FIGURE,
            "unit": str, "seeds": int, "seconds": float, "history": [{"seed": int, "new": float, "best": float}],
            "gain": float, "duplicate": bool, "diverged": {"new": int, "best": int}, "try": (int, types.NoneType),
            "alpha": float, "alpha_spent": float, "error_rate": float, "seeds_to_keep": int, "ledger": str,
            "sentence": str, "about": str,
        },
    ),
    "learn": (
        {"lessons": [{"name": str, "title": str, "aim": str, "minutes": int, "steps": [
            {"do": str, "ask": str, "choices": [str], "answer": str, "drive": {str: object}}]}]},
        {"file": str, "right": bool, "functions": [
            {"function": str, "state": str, "mistakes": [str], "sentence": str}]},
    ),
    "verify": (
        {"run": str, "state": str, "whole": bool,
         "checks": [{"name": str, "compared": int, "what": str, "faults": [str], "unchecked": [str]}]},
    ),
    "report": ({"run": str, "report": str, "bytes": int, "damaged": [object]},),
    "import": ({"run": str, "task": str, "parameters": int, "notes": [str], "family": str},),
    "export": ({"run": str, "folder": str, "family": _TEXT, "why_not": str, "files": [str]},),
    "plan": (
        {"model": str, "parameters": int, "memory": {str: int}, "peak_bytes": int, "seconds": float, "updates": int,
         "tokens": int},
        _RECEIPT,
    ),
    "bench": ({"machine": str, "results": {str: [{str: object}]}, "left_out": [str], "seconds": float},),
    "doctor": (
        {"versions": {str: str}, "system": str, "processor": {"name": str, "flags": [str]}, "threads": int,
         "cores": int, "devices": [str], "extras": {str: [str]}},
    ),
}  # fmt: skip
"""Command -> the forms that its object has one of."""


def schema(command: str) -> JsonObject:
    """The JSON Schema (draft 2020-12) of a command's `--json`."""
    forms = FORMS[command]
    form = forms[0] if len(forms) == 1 else forms
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"qkv {command} --json",
        **schema_of(form),
    }


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def schema_of(form: object) -> JsonObject:
    """The JSON Schema of a form."""
    if form is object:
        return {}
    if isinstance(form, type):
        return {"type": _TYPES[form]}
    if isinstance(form, frozenset):
        return {"enum": sorted(form)}
    if isinstance(form, tuple):
        return {"anyOf": [schema_of(one) for one in form]}
    if isinstance(form, list):
        return {"type": "array", "items": schema_of(form[0])}
    assert isinstance(form, dict), form
    if str in form:
        return {"type": "object", "additionalProperties": schema_of(form[str])}
    properties = {str(name): schema_of(one) for name, one in form.items()}
    return {"type": "object", "properties": properties} | (
        {} if isinstance(form, WhereThere) else {"required": list(properties)}
    )
