from gpuworker.accept.fronts.gpu_tests import main

main()
