"""Write spoken words as WAV files: a stand-in for Speech Commands, in its layout, where nothing can be downloaded.

Each word is a row of sounds, each sound a buzz or a noise through two or three resonances (formants). Those of vowels
are the means of 33 men in Peterson and Barney, "Control methods used in a study of the vowels", 1952. A voice has a
pitch, a length of the vocal tract, and a speed. Each time it says a word, all three vary a little, and there is noise.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.io import wavfile

RATE = 16_000
BUZZ = {
    "i": (270, 2290, 3010),
    "e": (530, 1840, 2480),
    "a": (730, 1090, 2440),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
    "n": (250, 1000, 2200),
    "m": (250, 900, 2100),
    "l": (360, 1300, 2700),
    "r": (310, 1060, 1380),
    "v": (250, 1400, 2300),
}
NOISE = {"s": (5000, 6500), "S": (2500, 3500), "f": (1500, 7000), "t": (3500, 4500), "p": (700, 1500), "g": (400, 2000)}
SHORT = "tpg"
WORDS = {
    "yes": "ies",
    "no": "nou",
    "up": "ap",
    "left": "left",
    "right": "rait",
    "stop": "stop",
    "go": "gou",
    "marvin": "marvin",
    "sheila": "Sila",
}


def say(word: str, random: np.random.Generator, pitch: float, tract: float, speed: float) -> np.ndarray:
    """Return one second of a word, from -1 to 1."""
    parts = []
    for sound in WORDS[word]:
        size = int(RATE * (0.06 if sound in SHORT else 0.14) / speed * random.uniform(0.8, 1.2))
        if sound in BUZZ:
            source = np.zeros(size)
            source[:: int(RATE / pitch / random.uniform(0.95, 1.05))] = 1.0
        else:
            source = random.normal(0, 0.1, size)
        hertz = np.fft.rfftfreq(size, 1 / RATE)
        peaks = [1 / (1 + ((hertz - tract * peak) / 90) ** 2) for peak in {**BUZZ, **NOISE}[sound]]
        part = np.fft.irfft(np.fft.rfft(source) * sum(peaks), size) * np.hanning(size) ** 0.3
        parts.append(part / np.abs(part).max())
    spoken = np.concatenate(parts)[:RATE]
    second = random.normal(0, random.uniform(0.002, 0.02), RATE)
    begin = random.integers(0, RATE - len(spoken) + 1)
    second[begin : begin + len(spoken)] += random.uniform(0.2, 0.7) * spoken
    return second


def main(folder: Path) -> None:
    """Let voices say all words: 16 each word 4 times, and a child, the last one, 20 times."""
    random = np.random.default_rng(0)
    for voice in range(17):
        pitch, tract, speed = random.uniform(85, 220), random.uniform(0.85, 1.15), random.uniform(0.8, 1.3)
        times = 4
        if voice == 16:
            pitch, tract, times = 330, 1.8, 20
        for word in WORDS:
            (folder / word).mkdir(parents=True, exist_ok=True)
            for time in range(times):
                sound = np.clip(say(word, random, pitch, tract, speed) * 32767, -32768, 32767)
                wavfile.write(folder / word / f"voice{voice:02}_nohash_{time}.wav", RATE, sound.astype(np.int16))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
