"""Shortens a draft network's vocabulary to the words that texts use most (FR-Spec of Zhao et al.
2025).

Example:
  fastdec shortlist --model=folder --draft=eagle --texts=corpus.txt --words=1000 --output=short
  fastdec generate --model=folder --draft=short --prompt='A man in'

The model's output stays what it was. A guess costs less, and the model's rarer words are no longer
guessed. Texts are in the language that the model writes: files with a text on each line, or outputs
of `fastdec generate` (.jsonl). The share of their tokens that the words are is printed.
"""

from collections.abc import Sequence

import numpy as np

import fastdec as fd
from fastdec.cli.flags import Parser, whole
from fastdec.cli.pool import texts_of
from fastdec.errors import UserError
from fastdec.files import place
from fastdec.folders.drafts import is_replaceable
from fastdec.text.load import open_folder, tokenizer_of


def main(words: Sequence[str]) -> None:
  parser = Parser('shortlist', __doc__)
  parser.add_argument('--model', required=True, help='folder of a model, or of a finished run')
  parser.add_argument('--draft', required=True, help='folder of a draft network for it')
  parser.add_argument(
    '--texts',
    required=True,
    help='files with a text on each line, or of fastdec generate, such as a,b',
  )
  parser.add_argument('--output', required=True, help='folder for the shorter draft')
  parser.add_argument('--words', type=whole(1), required=True, help='words to keep, such as 1000')
  given = parser.read(words)
  if not is_replaceable(place(given.output)):
    raise UserError(
      f'--output={given.output} is there already, and holds no draft alone: give a new folder'
    )
  folder, texts = open_folder(given.model), texts_of(given.texts)
  tokens = np.concatenate([tokenizer_of(folder).encode(text) for text in texts])
  draft = fd.load_draft(given.draft)
  short = fd.shortlist((folder.model, folder.params()), draft, tokens, given.words)
  fd.save_draft(given.output, short)
  share = 100 * np.isin(tokens, short[1]['ids']).mean()
  print(
    f'{given.output} guesses among {short[0].words:,} of {folder.model.vocab_size:,} words,'
    f' which are {share:.1f} % of the texts'
  )
