"""What the records that become JSON have in common."""

from __future__ import annotations

from typing import Any

import pydantic


class Record(pydantic.BaseModel):
    """Values by name that never change; other names, and numbers that JSON does not have, are refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def taken_over(cls, value: object) -> dict[str, Any]:
        """Return what a value has under the names of the record's fields."""
        return {name: getattr(value, name) for name in cls.model_fields if hasattr(value, name)}
