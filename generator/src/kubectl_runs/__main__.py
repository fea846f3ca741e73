from kubectl_runs.cli import main

main()
