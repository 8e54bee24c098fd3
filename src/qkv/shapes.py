"""Shapes in signatures, in the notation of jaxtyping: `x: Float[Tensor, "batch query_pos d_model"]`.

Here each name is `typing.Annotated`, so a type checker sees the tensor and nothing is loaded or checked at run time.
Under pytest they are jaxtyping's own names, and beartype checks each call (`tests/conftest.py`). Within one call an
axis has one size wherever it is named; `*batch` is any number of axes, `#batch` that size or 1, `...` any shape.
"""

from typing import Annotated as Bool
from typing import Annotated as Complex
from typing import Annotated as Float
from typing import Annotated as Float32
from typing import Annotated as Float64
from typing import Annotated as Int
from typing import Annotated as Int64
from typing import Annotated as Num
from typing import Annotated as UInt8

__all__ = ["Bool", "Complex", "Float", "Float32", "Float64", "Int", "Int64", "Num", "UInt8"]
