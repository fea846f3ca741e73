from gpuworker.accept.legacy_cli.run_all_tests import main

main()
