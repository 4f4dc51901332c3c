"""Table 4 of Stern et al. 2018: BLEU and speed-up on the test set, all of it distilled."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('wmt14', 'experiments.stern2018.text', 'Translation', 'table4')
