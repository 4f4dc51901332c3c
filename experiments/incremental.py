"""Savings of incremental decoding: no cache, a cache driven from the host, one program."""

from experiments.lab import cli

if __name__ == '__main__':
  cli.run_paper('incremental', 'experiments.incremental_decoding', 'Incremental', 'incremental')
