from gpuworker.accept.legacy_cli.ddp_tests import main

main()
