"""The loads of a barrier group over the steps ahead, from what is expected of each resident.

Separate from the policy because it is the hot loop of a round: one visit to each resident, then sums. Source:
BalanceRoute, arXiv 2605.06113, which names projection and envelope. That a resident is taken to be there up
to its expected steps and gone after them is ours; weighing each step by its chance of being reached instead
would cost a product for every resident and step, 40,000 of them at 500 residents.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, islice
from operator import add, mul, sub

from router.core.forecasts import Steps
from router.core.predict_survival import TABLE_SHIFT
from router.core.worker import WorkerView
from router.policies.barrier import Unit, residents_of


def project(member: WorkerView, tables: Mapping[str, Steps], count: int, unit: Unit) -> list[float]:
    """Loads of one worker at the first `count` of the steps 0 to H. A resident grows by a token a step, for
    each of its sequences, while it is there.

    Args:
        tables: by request id, for leases that do not say themselves what is expected of them; a resident
            without one stays.
    """
    tokens = [0] * count  # by the number of steps after which its holder is gone
    sequences = [0] * count
    for lease in residents_of(member) or ():
        # As Outlook.steps, written out: this is read for each resident in each round. Where a lease says what
        # is ahead of it, its request is not touched: what lies far away in memory takes most of the time.
        ahead = lease.ahead
        if ahead is None:
            ahead = tables.get(lease.request.id)
            if ahead is None:
                continue
        table, beyond, width = ahead
        written = lease.generated_tokens
        try:
            steps = table[(written if width == 1 else written // width) >> TABLE_SHIFT]
        except IndexError:
            steps = beyond
        if steps < count:
            tokens[steps] += lease.prompt_tokens + written
            sequences[steps] += width
    beside = unit.tokens_per_sequence
    loads: list[float]
    if any(sequences):
        held = accumulate(islice(tokens, 1, None), sub, initial=member.kv_tokens)
        running = accumulate(islice(sequences, 1, None), sub, initial=member.sequences)
        loads = list(map(add, held, map(mul, range(beside, beside + count), running)))
    else:  # all stay, and grow in step
        growth, first = member.sequences, member.kv_tokens + beside * member.sequences
        loads = list(range(first, first + count * growth, growth)) if growth else [first] * count
    if unit.per_token == 1.0 and not unit.base:
        return loads
    return [unit.base + unit.per_token * load for load in loads]
