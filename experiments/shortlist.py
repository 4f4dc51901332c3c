"""Shortens a draft network's vocabulary to the words that texts use most (`fd.shortlist`, FR-Spec
of Zhao et al. 2025).

  python -m experiments.shortlist --model=folder --draft-head=out/eagle --texts=corpus.txt \\
    --words=1000 --output=short
  python -m experiments.generate --model=folder --draft-head=short --prompt="A man in"

The model's output stays what it was; a guess costs less, and the model's rarer words are no longer
guessed. Texts are of the language that the model writes: a line each, or what experiments.generate
has written (a file that ends in .jsonl). Printed is which share of their tokens the words are.
"""

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string('model', None, 'folder of a model, or of a finished run', required=True)
DRAFT_HEAD = flags.DEFINE_string(
  'draft-head', None, 'folder of a draft network for it', required=True
)
TEXTS = flags.DEFINE_list(
  'texts', None, 'files with a text on each line, or of experiments.generate', required=True
)
WORDS = flags.DEFINE_integer(
  'words', None, 'words to keep, such as 1000', required=True, lower_bound=1
)
OUTPUT = flags.DEFINE_string('output', None, 'folder for the shorter draft', required=True)


def main(_: list[str]) -> None:
  import pathlib

  import numpy as np

  import fastdec as fd
  from experiments.lab.show import plain_console
  from experiments.tools.counted_texts import texts_of
  from fastdec import folders
  from fastdec.errors import UserError
  from fastdec.folders.drafts import is_replaceable

  output = pathlib.Path(OUTPUT.value)
  if not is_replaceable(output):
    raise UserError(
      f'--output={output} is there already, and holds no draft alone: give a new folder'
    )
  folder, texts = folders.open(MODEL.value), texts_of([pathlib.Path(name) for name in TEXTS.value])
  tokens = np.concatenate([folder.tokenizer.encode(text) for text in texts])
  draft = fd.load_draft(DRAFT_HEAD.value)
  short = fd.shortlist((folder.model, folder.params()), draft, tokens, WORDS.value)
  fd.save_draft(output, short)
  share = 100 * np.isin(tokens, short[1]['ids']).mean()
  kept = (
    f'{short[0].words:,} of {folder.model.vocab_size:,} words, which are {share:.1f} % of the texts'
  )
  plain_console().print(f'{output} guesses among {kept}')


if __name__ == '__main__':
  cli.run(main)
