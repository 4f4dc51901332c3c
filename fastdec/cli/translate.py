"""Translates sentences, and marks the blocks: what each call of the model wrote.

Example:
  fastdec translate --model=out/quickstart/k8-finetune "A sentence." "Another one."
  fastdec translate --model=folder --input=lines.txt --strategy='blockwise(rule=TopN(n=2))'
  fastdec translate --model=nllb --source=en --target=de "A sentence."
  cat lines.txt | fastdec translate --model=folder --beam=4 --nbest=2

Heads in the model's folder draft, where no flag says otherwise. With --beam it searches instead,
and prints each hypothesis behind its score. --strategy=tuned translates by what fastdec tune found
fastest for the model, in its type of numbers and as many at once.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np

import fastdec as fd
from fastdec.cli import opening
from fastdec.cli.flags import Parser, number, whole
from fastdec.cli.show import marked, plain_console
from fastdec.decoding.pool import decode_each, in_order
from fastdec.decoding.protocol import finish_reason
from fastdec.errors import UserError
from fastdec.files import read_bytes, text_of
from fastdec.text.load import open_folder


def main(words: Sequence[str]) -> None:
  parser = Parser('translate', __doc__)
  parser.usage = '%(prog)s --model=MODEL [flags] [SENTENCE ...]'
  opening.add_model(parser)
  parser.add_argument('--input', help='file with a sentence on each line')
  parser.add_argument('--source', help="language of the sentences, such as 'en' (the tokenizer's)")
  parser.add_argument('--target', help="language of the translations, such as 'de' (the model's)")
  parser.add_argument('--beam', type=whole(1), help='searches with this many beams instead')
  parser.add_argument(
    '--length-penalty', type=number, default=0.6, help="GNMT's alpha, of --beam (0.6)"
  )
  parser.add_argument(
    '--nbest', type=whole(1), default=1, help='hypotheses of each sentence, at most --beam (1)'
  )
  opening.add_length(parser, 100)
  opening.add_cores(parser)
  parser.add_argument('--rows', type=whole(1), help='sentences decoded at once (as tuned, or 16)')
  parser.add_argument('--plain', action='store_true', help='prints the translations alone')
  given, sentences = parser.read_beside(words)
  lines = _lines(given.input, sentences)
  rows, search = opening.settle(given, len(lines)), _search(given)
  languages = {'source': given.source, 'target': given.target}
  unread = opening.unread(given.model, None, lines, given.max_len, 'sentence', **languages)
  if unread.model.start_id is None:
    raise UserError(
      f'{given.model} is a language model, which goes on from a text: give it to fastdec generate,'
      ' or a model with an encoder'
    )
  own = given.model if search is None and open_folder(given.model).has_heads else None
  generator = dataclasses.replace(opening.load(given, own), rows=rows)
  if search is None:
    written, console = generator(lines, given.max_len), plain_console()
    _tell_cut([one.finish_reason for one in written], given.max_len)
    for one in written:
      console.print(one.text if given.plain else marked(one.pieces))
    return
  for score, line in _searched(generator, search, lines, given.max_len):
    print(line if given.plain else f'{score:8.3f}  {line}')


def _tell_cut(reasons: Sequence[str], max_len: int) -> None:
  cut = reasons.count('length')
  if cut:
    said = f'{cut} of {len(reasons)} translations were cut at --max-len={max_len}'
    print(f'{said}: raise it for longer ones', file=sys.stderr)


def _search(given: argparse.Namespace) -> fd.Beam | None:
  """Returns the beam search that is asked for, None without --beam."""
  if given.beam is None:
    if given.nbest > 1:
      raise UserError(f'--nbest={given.nbest} needs a search: give --beam={given.nbest} or more')
    return None
  for name in ('strategy', 'draft', 'heads'):
    if getattr(given, name) is not None:
      raise UserError(
        f'--{name}={getattr(given, name)} and --beam={given.beam} each say how to decode: give one'
      )
  return fd.Beam(given.beam, length_penalty=given.length_penalty, n_best=given.nbest)


def _searched(
  generator: fd.Generator, search: fd.Beam, lines: Sequence[str], max_len: int
) -> list[tuple[float, str]]:
  """Returns the hypotheses of all lines, each line's best first, with their scores."""
  sources = [np.array(generator.read(line)[0], np.int32) for line in lines]
  how = {'max_len': max_len, 'rows': generator.rows, 'processors': generator.processors}
  found = decode_each(generator.model, generator.params, sources, search, **how)
  out = in_order(found).checked()
  assert out.nbest_tokens is not None and out.nbest_scores is not None  # of a search
  rows = zip(out.tokens.tolist(), out.lengths, strict=True)
  _tell_cut([finish_reason(generator.model, ids[:length]) for ids, length in rows], max_len)
  hypotheses = []
  for scores, tokens in zip(out.nbest_scores, out.nbest_tokens, strict=True):
    for score, ids in zip(scores, tokens, strict=True):
      hypotheses.append((float(score), generator.tokenizer.decode(ids.tolist())))
  return hypotheses


def _lines(file: str | None, sentences: Sequence[str]) -> list[str]:
  """Reads the sentences from the one place that has them."""
  if sentences and file is not None:
    raise UserError('there are sentences on the command line and --input: give one of them')
  if not sentences and file is None and (sys.stdin is None or sys.stdin.isatty()):
    raise UserError(
      'there is nothing to translate: give sentences, --input=FILE, or lines on standard input'
    )
  name = 'the command line' if sentences else 'standard input' if file is None else file
  if sentences:
    words = [sentence.replace('\n', ' ') for sentence in sentences]
    data = '\n'.join(words).encode(errors='surrogateescape')
  elif file is None:
    data = sys.stdin.buffer.read()
  else:
    try:
      data = read_bytes(file)
    except OSError as error:
      raise UserError(f'cannot read {name} ({error.strerror}): give a text file') from None
  text = text_of(data, name)
  if not text and not sentences:
    raise UserError(f'{name} is empty: give a sentence on each line')
  ended = text if sentences else text.removesuffix('\n')
  return ended.split('\n')  # only a newline ends a line, as for `wc -l`
