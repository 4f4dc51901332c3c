from experiments import run

if __name__ == '__main__':
  run('figure4')
