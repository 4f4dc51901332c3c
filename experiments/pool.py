"""Counts the n-grams of texts into a pool, a file of guesses for lookahead and prompt lookup
(`fd.build_pool`).

  python -m experiments.pool --model=folder --texts=corpus.txt --output=pool.safetensors
  python -m experiments.pool --model=folder --texts=out.jsonl,corpus.txt \\
    --output=pool.safetensors --ngram=4
  python -m experiments.generate --model=folder --lookahead --pool=pool.safetensors --prompt="A \\
    man in"

A text file has a text on each line. A file that ends in .jsonl is what experiments.generate has
written: its outputs are counted. The ids are those of the model's tokenizer, so the pool is for
models that have the same.
"""

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string('model', None, 'folder of a model, or of a finished run', required=True)
TEXTS = flags.DEFINE_list(
  'texts', None, 'files with a text on each line, or of experiments.generate', required=True
)
OUTPUT = flags.DEFINE_string('output', None, 'file for the pool', required=True)
NGRAM = flags.DEFINE_integer(
  'ngram', 5, 'tokens of an n-gram, the first of which is its key', lower_bound=2
)
GUESSES = flags.DEFINE_integer(
  'guesses', 15, 'n-grams to keep of each key, the most frequent', lower_bound=1
)


def main(_: list[str]) -> None:
  import pathlib

  import fastdec as fd
  from experiments.lab.show import plain_console
  from experiments.tools.counted_texts import texts_of
  from fastdec import folders

  folder = folders.open(MODEL.value)
  texts = texts_of([pathlib.Path(name) for name in TEXTS.value])
  rows = [folder.tokenizer.encode(text) for text in texts]
  pool = fd.build_pool(rows, folder.model, NGRAM.value, GUESSES.value)
  fd.save_pool(pool, OUTPUT.value)
  counts = f'{len(pool.values):,} n-grams of {pool.ngram} tokens from {len(rows):,} texts'
  plain_console().print(f'{OUTPUT.value} holds {counts}')


if __name__ == '__main__':
  cli.run(main)
