"""Speculative decoding (Leviathan et al. 2022): theory against practice, Tables 2 to 4."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('speculative', 'experiments.leviathan2022', 'Speculative', 'speculative')
