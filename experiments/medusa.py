"""Medusa (Cai et al. 2024): heads on a language model, their trees, and what they gain."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('medusa', 'experiments.cai2024', 'Medusa', 'medusa')
