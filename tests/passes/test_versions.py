"""The newest live version of a value is found without a look at all live versions."""

from __future__ import annotations

import random

from poet_onnx.passes.versions import Lives, Version


class Watched(Version):
    """A version that counts who looks at its end."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        if name == "last_read":
            Watched.looks += 1
        return super().__getattribute__(name)


def newest_of_all(lives: Lives, index: int, other_than: list[Version]) -> Version | None:
    """Return the version that was ready last, of one step the first, by looking at all of them."""
    alive = [
        version
        for version in lives.versions
        if version.ready is not None and version.ready < index <= version.last_read and version not in other_than
    ]
    return max(alive, key=lambda version: version.ready or 0, default=None)


def test_the_newest_live_version_is_the_one_of_all_that_is() -> None:
    bits = random.Random(0)
    for _ in range(50):
        ready = [bits.choice((None, *range(20))) for _ in range(bits.randint(0, 30))]
        lives = Lives([Version(f"v{place}", "", at, (at or 0) + bits.randint(0, 8)) for place, at in enumerate(ready)])
        for index in range(30):
            others = bits.sample(lives.versions, min(3, len(lives.versions)))
            assert lives.newest_live(index, others) is newest_of_all(lives, index, others)


def test_few_versions_are_looked_at_for_the_newest() -> None:
    count = 1000
    lives = Lives([Watched(f"v{step}", "", step, step + 1) for step in range(count)])
    Watched.looks = 0
    assert [lives.newest_live(step) for step in range(1, count)] == lives.versions[: count - 1]
    assert count <= Watched.looks + 1 <= 2 * count
