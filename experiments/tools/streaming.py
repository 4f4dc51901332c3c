"""One prompt: its text while it is generated, a colour a block, then what the blocks were worth."""

from typing import Any

import jax
import numpy as np
from rich.console import Console

import fastdec as fd
from experiments.lab.show import COLOURS
from experiments.tools.accepted import counted
from experiments.tools.generation import Generator
from fastdec.decoding.protocol import finish_reason
from fastdec.evaluation.wallclock import measure


def show(console: Console, generator: Generator, prompt: str, repeats: int) -> None:
  """Streams what follows the prompt, and sums up; with 0 repeats nothing is timed."""
  given = {
    'inputs': np.array([generator.ids(prompt)], np.int32),
    'max_len': generator.settings.max_len,
  }
  given['key'] = jax.random.key(generator.settings.seed)
  tokens, sizes = stream(console, generator, prompt, given)
  speeds = timed(generator, given, repeats) if repeats else []
  cut = []
  if finish_reason(generator.model, tokens) == 'length':
    cut = [f'cut at --max_len={given["max_len"]}: raise it for a longer text']
  for line in [worth(generator, sizes), *cut, *speeds, *generator.warnings]:
    console.print(line, style='dim')


def stream(
  console: Console, generator: Generator, prompt: str, given: dict[str, Any]
) -> tuple[list[int], list[int]]:
  """Prints the text as it is accepted. Returns its tokens and the block sizes, the first token's,
  which no call emitted, aside."""
  reader, tokens, sizes = generator.reader(prompt), [], []
  blocks = fd.stream(generator.model, generator.params, strategy=generator.strategy, **given)
  try:
    for i, (block,) in enumerate(blocks):
      if not i and not generator.is_translator:
        console.out(prompt, style='dim', end='', highlight=False)
      tokens += block
      sizes.append(len(block))
      console.out(reader.add(block), style=COLOURS[i % 2], end='', highlight=False)
    console.out(reader.finish(), style=COLOURS[(len(sizes) - 1) % 2], end='', highlight=False)
  finally:
    console.out()  # Ctrl-C, too, ends a line
  return tokens, sizes[1:]


def worth(generator: Generator, sizes: list[int]) -> str:
  """Summary of the blocks, in a line or two."""
  if not sizes:
    return '1 token, which the prompt yielded: no call'
  count = counted(np.bincount(sizes)[1:].tolist(), generator.strategy.most_accepted)
  return f'{sum(sizes) + 1} tokens, {len(sizes)} calls: {count}'


def timed(generator: Generator, given: dict[str, Any], repeats: int) -> list[str]:
  """Tokens per second, and the ratio to one token a call, decoding in turn."""
  plain, is_plain = generator.settings.plain, generator.strategy.most_accepted == 0
  strategies = {'this': generator.strategy} | ({} if is_plain else {'plain': plain})

  def decode(strategy):
    return lambda: fd.decode(generator.model, generator.params, strategy=strategy, **given).tokens

  lengths = {
    name: int(fd.decode(generator.model, generator.params, strategy=strategy, **given).lengths[0])
    for name, strategy in strategies.items()
  }
  times = measure({name: decode(strategy) for name, strategy in strategies.items()}, repeats)
  speeds = {name: lengths[name] / time.median for name, time in times.items()}
  line = f'{speeds["this"]:.1f} tokens per second'
  if not is_plain:
    ratio = times['this'].speedup_over(times['plain']) * lengths['this'] / lengths['plain']
    line += (
      f', {ratio:.2f} times {generator.settings.plain_name} ({speeds["plain"]:.1f} tokens'
      ' per'
      ' second)'
    )
  device = jax.devices()[0].device_kind
  return [f'{line}; {device}, one prompt, compiled, median of {repeats}']
