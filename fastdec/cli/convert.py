"""Makes a model folder from a fairseq checkpoint.

Example:
  fastdec convert checkpoint_best.pt --source-dict=dict.en.txt --target-dict=dict.de.txt --out=wmt14
  fastdec translate --model=wmt14 "A man is rid@@ ing a bike ."

The checkpoint is a .pt file, which needs PyTorch, or the state dict as .safetensors. Only weights
and options are read from a .pt file, and no code in it runs. Give the model sentences as they are
after its own preprocessing.
"""

from collections.abc import Sequence

import jax

from fastdec import folders
from fastdec.cli.flags import Parser, whole
from fastdec.errors import UserError
from fastdec.files import place, place_for_folder
from fastdec.hub.fairseq import convert as fairseq
from fastdec.hub.tokenizers.dictionary import DictionaryPair


def main(words: Sequence[str]) -> None:
  for word in words:
    if word.endswith('.gguf') and not word.startswith('-'):
      raise UserError(
        f'{word} is not a fairseq checkpoint: give it to the other commands, as --model'
      )
  parser = Parser('convert', __doc__)
  parser.usage = '%(prog)s CHECKPOINT --source-dict=FILE --target-dict=FILE --out=FOLDER'
  parser.add_argument('--source-dict', required=True, help="the source's dict.txt")
  parser.add_argument('--target-dict', required=True, help="the target's dict.txt")
  parser.add_argument('--out', required=True, help='folder to write')
  parser.add_argument(
    '--heads', type=whole(1), help='attention heads of a Transformer, if the file does not say'
  )
  args, files = parser.read_with_words(words)
  if len(files) != 1:
    raise UserError(f'there are {len(files)} checkpoints: give one .pt or .safetensors file')
  out, checkpoint = place(args.out), place(files[0])
  source, target = place(args.source_dict), place(args.target_dict)
  if not folders.is_replaceable(out.resolve()):
    raise UserError(f'{out} exists and is not just a model of fastdec: give a new folder as --out')
  place_for_folder(out)
  for file in (checkpoint, source, target):
    if out.resolve() in file.resolve().parents:
      raise UserError(f'{file} is in {out}, which is replaced: give a different folder as --out')
  pair = DictionaryPair.load(source, target)
  sizes = len(pair.source), len(pair.target)
  is_joined = pair.source.words == pair.target.words
  model, params = fairseq.load(checkpoint, sizes, is_joined, args.heads)
  folders.save(model, params, out.resolve(), tokenizer=(source, target))
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  print(
    f'{out}: {type(model).__name__}, {sizes[0]} source and {sizes[1]} target words,'
    f' {count:,} parameters'
  )
