"""Shortens a draft network's vocabulary to a text's commonest words (FR-Spec, Zhao et al. 2025).

Example:
  fastdec shortlist --model=folder --draft=eagle --texts=corpus.txt --words=1000 --output=short
  fastdec generate --model=folder --draft=short --prompt='A man in'

The model's output stays what it was. A guess costs less, and the model's rarer words are no longer
guessed. Texts are in the language that the model writes: files with a text on each line, outputs of
`fastdec generate`, or chats, as `fastdec pool` reads them. It prints the share of their tokens that
are among the words.
"""

from collections.abc import Sequence

import numpy as np

import fastdec as fd
from fastdec.cli import opening
from fastdec.cli.flags import Parser, whole
from fastdec.cli.pool import rows_of
from fastdec.errors import UserError
from fastdec.files import place, place_for_folder
from fastdec.folders.drafts import is_replaceable
from fastdec.text.load import open_folder


def main(words: Sequence[str]) -> None:
  parser = Parser('shortlist', __doc__)
  opening.add_model(parser)
  parser.add_argument('--draft', required=True, help='folder of a draft network for it')
  opening.add_texts(parser)
  parser.add_argument('--output', required=True, help='folder for the shorter draft')
  parser.add_argument('--words', type=whole(1), required=True, help='words to keep, such as 1000')
  args = parser.read(words)
  if not is_replaceable(place(args.output)):
    raise UserError(
      f'--output={args.output} is there already, and holds no draft alone: give a new folder'
    )
  place_for_folder(args.output)
  folder, tokens = open_folder(args.model), np.concatenate(rows_of(args))
  draft = fd.load_draft(args.draft)
  network, params = fd.shortlist((folder.model, folder.params()), draft, tokens, args.words)
  fd.save_draft(args.output, (network, params))
  share = 100 * np.isin(tokens, params['ids']).mean()
  print(
    f'{args.output} guesses among {network.words:,} of {folder.model.vocab_size:,} words,'
    f' which are {share:.1f} % of the texts'
  )
