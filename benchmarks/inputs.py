"""Measures how fast a core prepares a text for training: tokens a second of its time, both sides
counted.

  python benchmarks/inputs.py --train=corpus.en --train=corpus.de
  python benchmarks/inputs.py        # the embedded corpus

Rows: reading lines; tokenising them, once for a text; the plan of an epoch, which says which pairs
share a row; and batches of it, which every step of a training needs.
"""

import argparse
import tempfile
import time
from typing import Any

from fastdec.data.text.caching import make_tokenizer
from fastdec.data.text.corpus import TextData, open_text
from fastdec.data.text.packing import first_fit, packed_batches, tokenise

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument('--train', action='append', default=[], help='files of source and target')
parser.add_argument('--vocab-size', type=int, default=2000)
parser.add_argument('--rows', type=int, default=768)
parser.add_argument('--length', type=int, default=256, help='tokens of a row')
parser.add_argument('--batches', type=int, default=50)


def main() -> None:
  args, cache = parser.parse_args(), tempfile.mkdtemp()
  data = TextData('files', train=tuple(args.train)) if args.train else TextData()
  text = open_text(data, cache)
  tokenizer, _ = make_tokenizer(text, args.vocab_size, cache)

  begin = time.process_time()
  pairs = list(text.pairs('train'))
  read = time.process_time()
  tokens = tokenise(pairs, tokenizer, args.length)
  tokenised = time.process_time()
  first_fit(tokens.lengths, args.length)
  planned = time.process_time()
  batches = packed_batches(tokens, args.rows, args.length, 0)
  batches[0]
  ready = time.process_time()
  shown = 0
  for i in range(args.batches):
    batch: Any = batches[i]
    shown += int((batch['source_segment'] > 0).sum() + (batch['target_segment'] > 0).sum())
  ended = time.process_time()

  total = int(tokens.lengths.sum())
  print(f'{len(tokens):,} pairs, {total:,} tokens; batches are {fill(shown, args):.1%} full')
  times = {'reading': (total, read - begin), 'tokenising': (total, tokenised - read)}
  times['planning'] = total, planned - tokenised
  times['batches'] = shown, ended - ready
  for name, (count, seconds) in times.items():
    print(f'{name:<12}{count / seconds:>14,.0f} tokens a second')


def fill(shown: int, args: argparse.Namespace) -> float:
  """Returns the share of places that have a token."""
  return shown / (2 * args.batches * args.rows * args.length)


if __name__ == '__main__':
  main()
