"""Share of accepted drafts, in words."""

from collections.abc import Sequence


def accepted_shares(histogram: Sequence[int], most: int) -> list[float]:
  """For each place below the root: the share of calls that accepted a draft there.

  Args:
    histogram: entry i: how many calls emitted i + 1 tokens.
    most: places.
  """
  calls = sum(histogram)
  return [sum(histogram[place:]) / calls for place in range(1, most + 1)] if calls else []


def counted(histogram: Sequence[int], most: int) -> str:
  """Tokens per call and, where drafts are made, the share of calls that accepted one at each place;
  '' without calls.

  The call that ends a text counts like the others, though what an end or max_len cuts off might
  have been accepted.
  """
  if not sum(histogram):
    return ''
  tokens = sum(size * count for size, count in enumerate(histogram, start=1))
  text = f'{tokens / sum(histogram):.2f} tokens per call'
  shares = accepted_shares(histogram, most)
  listed = ', '.join(f'{place}: {share:.0%}' for place, share in enumerate(shares, start=1))
  return f'{text}\naccepted at {listed}' if shares else text
