"""Counts the n-grams of texts into a file of guesses, for lookahead and prompt lookup.

Example:
  fastdec pool --model=folder --texts=corpus.txt,out.jsonl --output=pool.safetensors
  fastdec generate --model=folder --strategy=lookahead --pool=pool.safetensors --prompt='A man in'

A text file has a text on each line. A file that ends in .jsonl is the output of `fastdec generate`,
whose texts are counted. The ids are those of the model's tokenizer, so the pool is for models that
have the same.
"""

import pathlib
from collections.abc import Sequence

import fastdec as fd
from fastdec.cli import opening
from fastdec.cli.flags import Parser, whole
from fastdec.cli.prompts import read_lines
from fastdec.errors import UserError
from fastdec.files import parse_json, place_to_write
from fastdec.text.load import open_folder, tokenizer_of


def main(words: Sequence[str]) -> None:
  parser = Parser('pool', __doc__)
  opening.add_model(parser)
  opening.add_texts(parser)
  parser.add_argument('--output', required=True, help='file for the pool')
  parser.add_argument(
    '--ngram', type=whole(2), default=5, help='tokens of an n-gram, the first being its key (5)'
  )
  parser.add_argument(
    '--guesses', type=whole(1), default=15, help='n-grams to keep of each key, the commonest (15)'
  )
  args = parser.read(words)
  place_to_write(args.output)
  folder, texts = open_folder(args.model), texts_of(args.texts)
  tokenizer = tokenizer_of(folder)
  rows = [tokenizer.encode(text) for text in texts]
  pool = fd.build_pool(rows, folder.model, args.ngram, args.guesses)
  fd.save_pool(pool, args.output)
  counts = f'{len(pool.values):,} n-grams of {pool.ngram} tokens from {len(rows):,} texts'
  print(f'{args.output} holds {counts}')


def texts_of(files: str) -> list[str]:
  """Reads the texts of files, whose names have commas between them.

  Raises:
    UserError: a file cannot be read, or has a line that is no text.
  """
  texts = []
  for file in map(pathlib.Path, files.split(',')):
    lines = read_lines(file, 'a text')
    if file.suffix == '.jsonl':
      lines = [_output(file, number, line) for number, line in enumerate(lines, 1)]
    texts += lines
  return texts


def _output(file: pathlib.Path, number: int, line: str) -> str:
  """Returns the text of a line that `fastdec generate` has written."""
  try:
    text = parse_json(line)['text']
  except (ValueError, KeyError, TypeError):
    text = None
  if not isinstance(text, str):
    raise UserError(
      f'line {number} of {file} is no output of fastdec generate: give its --output, or a .txt file'
    )
  return text
