"""Translates sentences, and marks the blocks: what each call of the model wrote.

Example:
  fastdec translate --model=out/quickstart/k8-finetune "A sentence." "Another one."
  fastdec translate --model=folder --input=lines.txt --strategy='blockwise(rule=TopN(n=2))'
  fastdec translate --model=nllb --source=en --target=de "A sentence."
  cat lines.txt | fastdec translate --model=folder --beam=4 --nbest=2

If no flag says otherwise, heads in the model's folder draft. --beam searches instead, and prints
each hypothesis after its score. --strategy=tuned uses what fastdec tune chose for the model: the
strategy, the type of numbers, and the number of sentences decoded at once.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

import fastdec as fd
from fastdec.cli import opening
from fastdec.cli.flags import Parser, number, whole
from fastdec.cli.prompts import split_lines
from fastdec.cli.show import mark_blocks
from fastdec.decoding.pool import decode_each, in_order
from fastdec.decoding.protocol import finish_reason
from fastdec.errors import UserError
from fastdec.files import explained, read_stdin, read_unpacked, text_of
from fastdec.terminal import plain_console
from fastdec.text.load import open_folder


def main(words: Sequence[str]) -> None:
  parser = Parser('translate', __doc__)
  parser.usage = '%(prog)s --model=MODEL [flags] [SENTENCE ...]'
  opening.add_model(parser)
  opening.add_drafting(parser)
  parser.add_argument('--input', help='file with a sentence on each line')
  parser.add_argument('--source', help="language of the sentences, such as 'en' (the tokenizer's)")
  parser.add_argument('--target', help="language of the translations, such as 'de' (the model's)")
  parser.add_argument('--beam', type=whole(1), help='searches with a beam of this size')
  parser.add_argument(
    '--length-penalty', type=number, default=0.6, help="GNMT's alpha, of --beam (0.6)"
  )
  parser.add_argument(
    '--nbest', type=whole(1), default=1, help='hypotheses of each sentence, at most --beam (1)'
  )
  opening.add_length(parser, 100)
  opening.add_cores(parser)
  parser.add_argument('--rows', type=whole(1), help='sentences decoded at once (as tuned, or 16)')
  parser.add_argument('--plain', action='store_true', help='prints only the translations')
  args, sentences = parser.read_with_words(words)

  # Check sentences and flags before weights are read.
  lines = _read_lines(args.input, sentences)
  rows, search = opening.restrict_cores(args, len(lines)), _read_search(args)
  opened = opening.open_without_weights(
    args.model, None, lines, args.max_len, 'sentence', args.source, args.target
  )
  if opened.model.start_id is None:
    raise UserError(
      f'{args.model} is a language model, which continues a text: give it to fastdec generate,'
      ' or a model with an encoder'
    )

  # Search, and print each hypothesis after its score.
  if search is not None:
    generator = dataclasses.replace(opening.load(args), rows=rows)
    for score, text in _search(generator, search, lines, args.max_len):
      if not args.plain:
        text = f'{score:8.3f}  {text}'
      print(text)
    return

  # Or translate by a strategy, by default with the heads in the model's own folder.
  default_heads = args.model if open_folder(args.model).has_heads else None
  generator = dataclasses.replace(opening.load(args, default_heads), rows=rows)
  translations, console = generator(lines, args.max_len), plain_console()
  _warn_of_cut([translation.finish_reason for translation in translations], args.max_len)
  for translation in translations:
    if args.plain:
      console.print(translation.text)
    else:
      console.print(mark_blocks(translation.pieces))


def _warn_of_cut(reasons: Sequence[str], max_len: int) -> None:
  """Says on stderr how many translations --max-len has cut."""
  cut = reasons.count('length')
  if cut:
    print(
      f'{cut} of {len(reasons)} translations were cut at --max-len={max_len}: raise it for longer'
      ' ones',
      file=sys.stderr,
    )


def _read_search(args: argparse.Namespace) -> fd.Beam | None:
  """Returns the search of --beam; None without that flag."""
  if args.beam is None:
    if args.nbest > 1:
      raise UserError(f'--nbest={args.nbest} needs a search: give --beam={args.nbest} or more')
    return None
  for name in ('strategy', 'draft', 'heads'):
    value = getattr(args, name)
    if value is not None:
      raise UserError(f'--{name}={value} cannot be used with --beam={args.beam}: give one of them')
  return fd.Beam(args.beam, length_penalty=args.length_penalty, n_best=args.nbest)


def _search(
  generator: fd.Generator, search: fd.Beam, lines: Sequence[str], max_len: int
) -> list[tuple[float, str]]:
  """Returns the hypotheses of all lines with their scores, the best of each line first."""
  sources = [np.array(generator.read(line)[0], np.int32) for line in lines]
  parts = decode_each(
    generator.model, generator.params, sources, search, max_len, generator.rows,
    processors=generator.processors,
  )  # fmt: skip
  out = in_order(parts).checked()
  assert out.nbest_tokens is not None and out.nbest_scores is not None  # of a search
  reasons = []
  for ids, length in zip(out.tokens.tolist(), out.lengths, strict=True):
    reasons.append(finish_reason(generator.model, ids[:length]))
  _warn_of_cut(reasons, max_len)
  hypotheses = []
  for scores, tokens in zip(out.nbest_scores, out.nbest_tokens, strict=True):
    for score, ids in zip(scores, tokens, strict=True):
      hypotheses.append((float(score), generator.tokenizer.decode(ids.tolist())))
  return hypotheses


def _read_lines(file: str | None, sentences: Sequence[str]) -> list[str]:
  """Reads the sentences of the command line, of a file, or of standard input."""
  if sentences and file is not None:
    raise UserError('there are sentences on the command line and --input: give one of them')
  if sentences:
    name = 'the command line'
    words = [sentence.replace('\n', ' ') for sentence in sentences]
    data = '\n'.join([*words, '']).encode(errors='surrogateescape')
  elif file is not None:
    name = file
    with explained('read', pathlib.Path(file), 'give a text file'):
      data = read_unpacked(file)
  elif sys.stdin is None or sys.stdin.isatty():
    raise UserError(
      'there is nothing to translate: give sentences, --input=FILE, or lines on standard input'
    )
  else:
    name, data = 'standard input', read_stdin()
  text = text_of(data, name)
  if not text:
    raise UserError(f'{name} is empty: give a sentence on each line')
  return split_lines(text.removesuffix('\n'))
