"""Counts the n-grams of texts into a file of guesses, for lookahead and prompt lookup.

Example:
  fastdec pool --model=folder --texts=corpus.txt,out.jsonl --output=pool.safetensors
  fastdec generate --model=folder --strategy=lookahead --pool=pool.safetensors --prompt='A man in'

A text file has a text on each line. If a file has records of JSON, such as the output of `fastdec
generate`, "text" is counted, or else what `fastdec generate --prompts` would read; chats are
counted whole, in the model's template. The model's tokenizer makes the ids, so only models with the
same tokenizer can use the pool.
"""

import pathlib
from collections.abc import Sequence

import fastdec as fd
from fastdec.cli import opening
from fastdec.cli.flags import Parser, whole
from fastdec.cli.prompts import read_texts
from fastdec.files import place_to_write
from fastdec.text.load import load_tokenizer, open_folder


def main(words: Sequence[str]) -> None:
  parser = Parser('pool', __doc__)
  opening.add_model(parser)
  opening.add_texts(parser)
  parser.add_argument('--output', required=True, help='file for the pool')
  parser.add_argument(
    '--ngram', type=whole(2), default=5, help='tokens of an n-gram, the first being its key (5)'
  )
  parser.add_argument(
    '--guesses', type=whole(1), default=15, help='the commonest n-grams to keep of each key (15)'
  )
  args = parser.read(words)
  place_to_write(args.output)
  folder = open_folder(args.model)
  texts = []
  for file in args.texts.split(','):
    texts += read_texts(pathlib.Path(file))
  rows = opening.encode_texts(args, load_tokenizer(folder), texts)
  pool = fd.build_pool(rows, folder.model, args.ngram, args.guesses)
  fd.save_pool(pool, args.output)
  counts = f'{len(pool.values):,} n-grams of {pool.ngram} tokens from {len(rows):,} texts'
  print(f'{args.output} holds {counts}')
