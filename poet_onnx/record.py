"""What the records that become JSON have in common."""

from __future__ import annotations

import pydantic


class Record(pydantic.BaseModel):
    """Values by name that never change; other names, and numbers that JSON does not have, are refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
