from gpuworker.accept.fronts.run_all_tests import main

main()
