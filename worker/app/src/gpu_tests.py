from gpuworker.accept.legacy_cli import gpu_tests

gpu_tests()
