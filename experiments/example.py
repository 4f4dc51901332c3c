"""The worked example of Stern et al. 2018 (section 7.4): which tokens each call of the model
accepted.

  python -m experiments.example --config=configs/wmt14.py:scale=multi30k --workdir=out/multi30k
  python -m experiments.example --config=configs/wmt14.py:scale=tiny,k=4,regime=finetune
  --workdir=... "A sentence."

Translates the sentence, or else the longer half's sentence of the test set that needs the fewest
calls for its length. Without k in the config it is the table's largest k and last regime; the model
is trained before if need be. Writes example.txt and example.png.
"""

from experiments.lab import cli

PAGE = cli.Page('wmt14')


def main(words: list[str]) -> None:
  import functools

  from experiments.stern2018 import text
  from fastdec.errors import UserError

  if len(words) > 1:
    raise UserError(f'there are {len(words)} sentences, and one makes an example: put it in quotes')
  PAGE.run(text.Translation, functools.partial(text.example, sentence=words[0] if words else None))


if __name__ == '__main__':
  cli.run(main, words=True)
