from gpuworker.accept.fronts.ddp_tests import main

main()
