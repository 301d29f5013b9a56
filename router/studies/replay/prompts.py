"""Prompts of an exact length that share exactly what the trace says they share.

Text is made of three-letter English words, each with its leading space: four bytes, which is one token of
the mock engine, and one token of most byte-pair vocabularies too. Separate from the requests because the
lengths are arithmetic and the requests are an API.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from router.studies.traces.trace import TraceEntry

BYTES_PER_WORD = 4

_WORD_LIST = """
act add age ago aid aim air all and ant any ape arc are ark arm art ash ask ate axe bad bag bar bat
bay bed bee beg bet bid big bin bit bow box boy bug bus but buy can cap car cat cow cry cub cup cut
dad dam day den dew did die dig dip dog dot dry due dug ear eat egg ego elf elm end era eve eye fan
far fat fee few fig fin fit fix fly fog for fox fun fur gap gas get gum gun guy gym had ham has hat
hay her hid him hip his hit hot how hut ice ill ink inn its jam jaw jet job joy key kid kin kit lab
law lay led leg let lid lie lip lit log lot low mad man map mat may men met mix mob mud mug nap net
new nod nor not now nut oak oat odd off oil old one opt our out owl own pad paw pay pea pen pet pie
pig pin pit pot put ram ran rap rat raw red rib rid rim rip row rub rug run rye sad sat saw say sea
see set she shy sin sip sir sit six ski sky son spa spy sun tab tan tap tar tax tea ten the tie tin
tip toe ton too top toy try tub tug two use van vet via war was wax way web wet who why wig win wit
won yes yet you zip zoo
"""

WORDS = tuple(_WORD_LIST.split())
"""256 words, so that one byte of a hash picks one."""

_LETTERS = tuple(bytes(ord(word[place]) for word in WORDS) for place in range(3))


def words(key: str, count: int) -> str:
    """The first `count` words of the endless text that belongs to `key`.

    A shorter text is the beginning of a longer one of the same key: SHAKE-128 is an extendable hash. Its
    bytes are translated three times, once for each letter, because that costs no loop.
    """
    picks = hashlib.shake_128(key.encode()).digest(count)
    text = bytearray(b" ") * (BYTES_PER_WORD * count)
    for place, letters in enumerate(_LETTERS, 1):
        text[place::BYTES_PER_WORD] = picks.translate(letters)
    return text.decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """What is known about the engine's token counts, by calibration or by option.

    Attributes:
        overhead_tokens: what the chat template (or a start token) adds to every prompt.
        tokens_per_word: 1.0 on the mock engine; the slope between two prompts elsewhere.
    """

    overhead_tokens: float = 0.0
    tokens_per_word: float = 1.0

    def words_for(self, prompt_tokens: int) -> int:
        """Words of a prompt that counts `prompt_tokens` with the overhead; at least 1."""
        return max(1, self.words_in(prompt_tokens - self.overhead_tokens))

    def words_in(self, tokens: float) -> int:
        """Words of `tokens` tokens of plain text, to the nearest whole word."""
        return max(0, round(tokens / self.tokens_per_word))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Writes the prompt of each entry of one trace.

    A block is the same text in every prompt that names it. What no block covers is this entry's own: no
    other entry and no other seed has it. Blocks change with the seed as well, so a new seed finds every
    prefix cache cold. Entries whose blocks cover the whole prompt and are equal have equal prompts: the
    trace says so.
    """

    seed: int
    block_tokens: int
    tokenizer: Tokenizer

    def write(self, entry: TraceEntry) -> str:
        """The text of one prompt, a function of the seed, the tokenizer and the entry's line and blocks."""
        total = self.tokenizer.words_for(entry.prompt_tokens)
        pieces: list[str] = []
        written = 0
        for place, name in enumerate(entry.blocks, 1):
            end = min(self.tokenizer.words_in(place * self.block_tokens), total)
            pieces.append(words(f"{self.seed}/block/{name}", end - written))
            written = end
            if written == total:
                break
        pieces.append(words(f"{self.seed}/line/{entry.line}", total - written))
        return "".join(pieces)
