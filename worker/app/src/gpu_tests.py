from gpuworker.accept.legacy_cli.gpu_tests import main

main()
