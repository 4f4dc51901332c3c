"""A fairseq checkpoint as a model folder.

  python -m fastdec.convert checkpoint_best.pt --source-dict dict.en.txt --target-dict \\
    dict.de.txt --out wmt14
  python -m experiments.translate --workdir=wmt14 "A man is rid@@ ing a bike ."

The checkpoint is a .pt file, which needs PyTorch, or the state dict as .safetensors. Only weights
and options of a .pt file are read; no code in it is run. Give sentences as the model's own
preprocessing leaves them.
"""

import argparse
import pathlib
import sys

import jax

from fastdec import folders
from fastdec.convert import fairseq
from fastdec.errors import UserError
from fastdec.tokenizers.dictionary import DictionaryPair


class Parser(argparse.ArgumentParser):
  def error(self, message: str) -> None:
    raise UserError(f'{message}: see python -m fastdec.convert --help')


def main(words: list[str]) -> None:
  """Converts the checkpoint that the command line names, and prints the model's kind and size."""
  given = _parsed(words)
  out = given.out.resolve()
  if not folders.is_replaceable(out):
    raise UserError(
      f'{given.out} is there already, and is not just a model of fastdec: give a new'
      ' folder as --out'
    )
  inputs = (given.model, given.source_dict, given.target_dict)
  if inside := next((file for file in inputs if out in file.resolve().parents), None):
    raise UserError(
      f'{inside} is in {given.out}, which is written anew: give another folder as --out'
    )
  pair = DictionaryPair.load(given.source_dict, given.target_dict)
  sizes, is_joined = (len(pair.source), len(pair.target)), pair.source.words == pair.target.words
  model, params = fairseq.load(given.model, sizes, is_joined, given.heads)
  folders.save(model, params, out, tokenizer=(given.source_dict, given.target_dict))
  count = sum(x.size for x in jax.tree.leaves(params))
  print(
    f'{given.out}: {type(model).__name__}, {sizes[0]} source and {sizes[1]} target words,'
    f' {count:,} parameters'
  )


def _parsed(words: list[str]) -> argparse.Namespace:
  about, _, rest = (__doc__ or '').partition('\n')
  parser = Parser('python -m fastdec.convert', description=about, epilog=rest, allow_abbrev=False)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument(
    'model', type=pathlib.Path, help='.pt checkpoint, or .safetensors of the state dict'
  )
  parser.add_argument('--source-dict', type=pathlib.Path, help="the source's dict.txt")
  parser.add_argument('--target-dict', type=pathlib.Path, help="the target's dict.txt")
  parser.add_argument(
    '--heads', type=int, help='attention heads of a Transformer, where the file does not tell'
  )
  parser.add_argument('--out', type=pathlib.Path, help='folder to write')
  given = parser.parse_args(words)  # a misspelt flag is named before the missing ones
  needed = {
    '--source-dict': given.source_dict,
    '--target-dict': given.target_dict,
    '--out': given.out,
  }
  if missing := [flag for flag, value in needed.items() if value is None]:
    parser.error(f'the following arguments are required: {", ".join(missing)}')
  return given


if __name__ == '__main__':
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
